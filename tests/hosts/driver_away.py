"""The driver's host is cut off under load, another driver takes over, and the first comes back.

python -m tests.hosts.driver_away --seconds 60

Exit code 0: producers and readers that reach brokers met no error, nothing was lost, doubled or taken back, and one
driver commands; else 1.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable

from spark_replication.errors import ReplicationError
from tests.hosts.bed import Bed, lacking
from tests.hosts.history import say
from tests.hosts.stage import CENTRE, DRIVERS, ROWS, Stage
from tests.live.cluster.history import Load
from tests.live.spark.waiting import wait_for

WORKERS = ["a", "b", "c", "d"]


def go_away_and_come_back(stage: Stage, load: Load, seconds: float) -> None:
    """seconds: for how long at least. The standby stands by already."""
    began, leases = time.monotonic(), stage.brokers.leases()
    stage.links.isolate(stage.driver.host)
    stage.standby.wait_started()
    stage.commanding = stage.standby
    stage.standby.wait_healthy()
    assert all(
        stage.brokers.lease(broker).controller_epoch > lease.controller_epoch for broker, lease in leases.items()
    )
    threading.Event().wait(max(0.0, began + seconds - time.monotonic()))
    before = stage.brokers.leases()
    stage.links.mend()
    wait_for("the first to stand by, or to end", lambda: _is_deposed(stage))
    load.wait_for_more(ROWS)
    held = {lease.controller_epoch for lease in stage.brokers.leases().values()}
    assert held == {lease.controller_epoch for lease in before.values()}, "the same one commands"


def _is_deposed(stage: Stage) -> bool:
    """Spark's Master may have given up its application meanwhile."""
    said = stage.driver.process.says()
    return "standing by" in said or "SPARK_GONE" in said


def run(seconds: float, say: Callable[[str], None]) -> None:
    with Bed([CENTRE, *DRIVERS, *WORKERS]) as bed:
        try:
            stage = Stage(bed, WORKERS, len(WORKERS))
            first = stage.brokers.pids()
            stage.standby.launch()
            wait_for("it to stand by", lambda: "standing by" in stage.standby.process.says())
            with stage.loaded("away") as load:
                began = time.monotonic()
                go_away_and_come_back(stage, load, seconds)
                assert not load.errors, load.errors
                say(f"away for {seconds:.0f} s: longest wait {load.longest_wait_s(began):.2f} s")
            assert stage.brokers.pids() == first, "no broker has ended"
            says = "ended, for Spark knows it no more" if stage.driver.process.returncode is not None else "stands by"
            say(f"{len(load.acknowledged)} rows, each there once and read in order; the first driver {says}")
        except BaseException:
            for name, words in bed.last_words():
                say(f"---- {name}\n{words}")
            raise


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.driver_away", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    missing = lacking()
    if missing:
        sys.stderr.write(f"{missing}\n")
        return 1
    try:
        run(options.seconds, say)
    except (AssertionError, ReplicationError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
