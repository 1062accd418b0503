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

from tests.hosts.program import carried_out, say, told_bed
from tests.hosts.stage import CENTRE, DRIVERS, ROWS, Stage
from tests.live.cluster.history import Load
from tests.live.spark.waiting import wait_for

WORKERS = ["a", "b", "c", "d"]
STANDS_BY = "standing by"


def go_away_and_come_back(stage: Stage, load: Load, seconds: float) -> None:
    """seconds: for how long at least. The standby stands by already."""
    began, leases = time.monotonic(), stage.brokers.leases()
    stood_by = stage.driver.process.says().count(STANDS_BY)
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
    wait_for("the first to stand by, or to end", lambda: _is_deposed(stage, stood_by))
    load.wait_for_more(ROWS)
    held = {lease.controller_epoch for lease in stage.brokers.leases().values()}
    assert held == {lease.controller_epoch for lease in before.values()}, "the same one commands"


def _is_deposed(stage: Stage, stood_by: int) -> bool:
    """Spark's Master may have given up its application meanwhile. stood_by: how often it had said that before."""
    said = stage.driver.process.says()
    return said.count(STANDS_BY) > stood_by or "SPARK_GONE" in said


def run(seconds: float) -> None:
    with told_bed([CENTRE, *DRIVERS, *WORKERS]) as bed:
        stage = Stage(bed, WORKERS, len(WORKERS))
        first = stage.brokers.pids()
        stage.standby.launch()
        wait_for("it to stand by", lambda: STANDS_BY in stage.standby.process.says())
        with stage.loaded("away") as load:
            began = time.monotonic()
            go_away_and_come_back(stage, load, seconds)
            assert not load.errors, load.errors
            say(f"longest wait {load.longest_wait_s(began):.2f} s")
        assert stage.brokers.pids() == first, "no broker has ended"
        says = "ended, for Spark knows it no more" if stage.driver.process.returncode is not None else "stands by"
        say(f"{len(load.acknowledged)} rows, each there once and read in order; the first driver {says}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.driver_away", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    return carried_out(f"away for {options.seconds:.0f} s", lambda: run(options.seconds))


if __name__ == "__main__":
    sys.exit(main())
