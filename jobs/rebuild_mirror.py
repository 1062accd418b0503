"""The mirror's tables as they are to be: the controller writes what they lack, and they are compared with ZooKeeper.

python jobs/rebuild_mirror.py --bootstrap zk://127.0.0.1:2181/spark_replication --path .data/mirror
spark-submit jobs/rebuild_mirror.py --bootstrap zk://host:port/chroot --path /shared/lake/spark_replication

Exit codes: 0 they agree; 1 they do not, and what differs is on standard output, or why it cannot be known on standard
error; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys

from spark_replication.admin.jobs.job_options import add_bootstrap, add_settings, parser_of, security_of, settings_of
from spark_replication.admin.mirror_agreement import DIFFERENCE, rebuilt, told
from spark_replication.errors import ReplicationError
from spark_replication.mirror.delta.paths import path_of


def main() -> int:
    options = arguments()
    try:
        path = options.path or path_of(settings_of(options))
        found = rebuilt(options.bootstrap, path, options.wait, security_of(options))
    except ReplicationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    for each in map(told, found.differences):
        print(", ".join(f"{name}: {value}" for name, value in zip(DIFFERENCE, each, strict=True)))
    print(found)
    return 1 if found.differences else 0


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    add_bootstrap(parser)
    add_settings(parser, None)
    parser.add_argument("--path", help="of the tables (default: as the settings have it)")
    parser.add_argument("--wait", type=float, default=30.0, help="seconds they may take (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
