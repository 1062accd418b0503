"""Guardians that are submitted again and again, wherever Spark has slots: nobody is stranded, no id is made in vain.

python -m tests.hosts.resubmissions --hosts 6 --times 30 [--seed N]

Kills executors of random hosts, one or two at a time. Exit code 0: after each, every broker's lease was renewed by a
guardian of a later submission, no broker had ended and none was new, and the load went on; else 1.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import time

from tests.hosts.program import carried_out, say, told_bed
from tests.hosts.stage import BROKERS, CENTRE, DRIVERS, ROWS, Stage
from tests.live.spark.waiting import wait_for

NEXT_S = 90.0  # within which the next submission has all leases


def run(seed: int, hosts: int, times: int) -> None:
    """AssertionError: what went wrong, after the kills that led to it."""
    workers = [f"w{number}" for number in range(hosts)]
    with told_bed([CENTRE, *DRIVERS, *workers]) as bed:
        _kill_again_and_again(Stage(bed, workers, BROKERS), random.Random(seed), times)


def _kill_again_and_again(stage: Stage, chance: random.Random, times: int) -> None:
    first, ids = stage.brokers.pids(), sorted(stage.brokers.directories())
    away = 0
    with stage.loaded("resubmissions") as load:
        for number in range(1, times + 1):
            began, before = time.monotonic(), stage.brokers.leases()
            having = [host for host in stage.spark.workers if stage.spark.executors(host)]
            victims = chance.sample(having, chance.choice([1, 1, 2]))
            for host in victims:
                stage.spark.kill_executors(host)
            wait_for(
                "guardians of the next submission to have all brokers",
                lambda before=before: all(lease != before[broker] for broker, lease in stage.brokers.leases().items()),  # type: ignore[misc]
                NEXT_S,
            )
            load.wait_for_more(ROWS)
            assert stage.brokers.pids() == first, "no broker has ended"
            assert sorted(stage.brokers.directories()) == ids, "none was made in vain"
            homes = {stage.brokers.host(broker) for broker in ids}
            kept = sorted(host.name for host in homes if not stage.spark.executors(host))
            away += bool(kept)
            say(
                f"{number}: without {', '.join(sorted(host.name for host in victims))}: all leases after "
                f"{time.monotonic() - began:.1f} s, longest wait {load.longest_wait_s(began):.2f} s, "
                f"kept from elsewhere: {', '.join(kept) or 'none'}"
            )
    say(f"{times} times, {away} of them with a broker that was kept from elsewhere; {len(load.acknowledged)} rows")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.resubmissions", description=__doc__)
    parser.add_argument("--hosts", type=int, default=6)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    options = parser.parse_args()
    return carried_out(f"seed {options.seed}", lambda: run(options.seed, options.hosts, options.times))


if __name__ == "__main__":
    sys.exit(main())
