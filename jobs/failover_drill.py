"""Load, kill -9 of a leader's broker, of an executor, of the driver; then all is counted. Exit 0: nothing lost.

make drill
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from spark_replication.admin.drill.drill import run
from spark_replication.errors import ReplicationError
from spark_replication.process.stop_signals import INTERRUPTED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="conf/local.toml", help="TOML file of settings (default: %(default)s)")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="of the report")
    options = parser.parse_args()
    try:
        return run(Path(__file__).parent / "start_cluster.py", options.config, options.format)
    except ReplicationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
