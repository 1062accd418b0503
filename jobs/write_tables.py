"""The tables of topics, written by this job: every row once, however many of these jobs run, and wherever.

python jobs/write_tables.py --bootstrap zk://127.0.0.1:2181/spark_replication --once orders
spark-submit jobs/write_tables.py --bootstrap zk://host:port/chroot

Beside each broker a process does the same by itself, unless table.writer.enabled=false.

Exit codes: 0 it was stopped, or with --once the tables have what was committed; 1 they have not, and why is on standard
error; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys

from spark_replication.admin.cli.progress_line import ProgressLine
from spark_replication.admin.jobs.job_options import add_bootstrap, add_settings, parser_of, security_of, settings_of
from spark_replication.admin.tables_by_hand import PATIENCE_S, write_tables
from spark_replication.errors import ReplicationError
from spark_replication.tables.places import read_table_options


def main() -> int:
    options = arguments()
    try:
        with ProgressLine() as line:
            done = write_tables(
                options.bootstrap,
                security_of(options),
                read_table_options(settings_of(options)),
                options.topics,
                once=options.once,
                patience_s=options.wait,
                progress=line.tell,
            )
    except ReplicationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    print(done)
    return 0


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    add_bootstrap(parser)
    add_settings(parser, None)
    parser.add_argument("--once", action="store_true", help="end as soon as the tables have what is committed by now")
    parser.add_argument(
        "--wait", type=float, default=PATIENCE_S, help="seconds that --once may wait (default: %(default)s)"
    )
    parser.add_argument("topics", nargs="*", help="those to write (default: all that are tables)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
