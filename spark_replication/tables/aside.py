"""A table's upkeep, done by a process of its own: `python -m spark_replication.tables.aside`.

delta-rs keeps Python's lock while it lists files in an object store or changes a table's properties, and what it takes
of memory to join files is given back as the process ends.
"""

from __future__ import annotations

import os
import sys

import msgspec

from spark_replication.errors import ReplicationError
from spark_replication.mirror.delta.aside import run_aside
from spark_replication.process.threads import now_ms
from spark_replication.tables.delta_table import TableOwner
from spark_replication.tables.folder import TableFolder
from spark_replication.tables.upkeep import SWEPT_AGE_MS, TableUpkeep, TidiedFiles, UpkeepRules


class UpkeepTask(msgspec.Struct, frozen=True, kw_only=True):
    """It comes by standard input, since `store` may hold secrets."""

    uri: str
    owner: TableOwner
    store: dict[str, str]
    rules: UpkeepRules
    swept_age_ms: int = SWEPT_AGE_MS


def tidied_aside(task: UpkeepTask) -> TidiedFiles:
    """Have another process do `TableUpkeep.tidy`. StorageFailed: as there, or that process has failed."""
    said = run_aside("spark_replication.tables.aside", msgspec.json.encode(task), f"{task.uri} was not tidied")
    return msgspec.json.decode(said, type=TidiedFiles)


def main() -> int:
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=UpkeepTask)
    try:
        upkeep = TableUpkeep(TableFolder(task.uri, task.store), task.owner, now_ms)
        done = upkeep.tidy(task.rules, swept_age_ms=task.swept_age_ms)
    except ReplicationError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    sys.stdout.write(msgspec.json.encode(done).decode())
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # delta-rs' threads may abort a process that ends in any other way
