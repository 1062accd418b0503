"""The main job: a cluster of brokers on Spark, a topic, a little load, and a live status until Ctrl-C.

make run                                   all of it on this machine
spark-submit --properties-file conf/spark-defaults.conf jobs/start_cluster.py --config conf/cluster.toml --brokers 3

Exit codes: 0 it ran, and was stopped; 1 it could not start, or Spark has gone from under it, and it says why on
standard error; 2 wrong usage; 130 it was stopped while it started. Nothing is left running, unless Spark has gone, or
--detach-brokers leaves the brokers.
"""

from __future__ import annotations

import argparse
import sys
from threading import Event

from spark_replication.process.stop_signals import INTERRUPTED, on_stop_signals


def main() -> int:
    stopping = Event()
    on_stop_signals(stopping.set)  # first: what follows takes a second to load
    from spark_replication.admin.jobs.cluster_job import run_cluster
    from spark_replication.errors import ReplicationError, StartGivenUp

    options = arguments()
    try:
        run_cluster(options, stopping)
    except StartGivenUp:
        return INTERRUPTED
    except ReplicationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def arguments() -> argparse.Namespace:
    from spark_replication.admin.jobs.job_options import add_settings, count, parser_of

    parser = parser_of(__doc__)
    add_settings(parser, "conf/local.toml")
    parser.add_argument("--brokers", type=count, default=3, help="how many (default: %(default)s)")
    parser.add_argument("--master", help="Spark's; default: what spark-submit says, else local[brokers + 1]")
    parser.add_argument("--no-load", action="store_true", help="no topic, no load")
    parser.add_argument("--detach-brokers", action="store_true", help="on Ctrl-C leave the brokers to the next driver")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
