"""Load, kill -9 of the leader's broker, kill -9 of the driver, restart; then all is counted. Exit 0: nothing lost.

make drill
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from spark_replication.admin.drill import run
from spark_replication.errors import ReplicationError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="conf/local.toml", help="TOML file of settings (default: %(default)s)")
    options = parser.parse_args()
    try:
        return run(Path(__file__).parent / "start_cluster.py", options.config)
    except ReplicationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
