"""Work on a table in an object store, done by a process of its own: `python -m spark_replication.mirror.delta.aside`.

When delta-rs changes a table's properties or lists files, it keeps Python's lock while it waits for the network. In a
controller's process that would stop all other threads as well, and a store that does not answer would cost the
controller its ZooKeeper session.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Literal

import msgspec

from spark_replication.errors import ReplicationError, StorageFailed

TIMEOUT_S = 600.0

Work = Literal["forget", "tidy"]


class TableTask(msgspec.Struct, frozen=True, kw_only=True):
    """The work to do on one table. It comes by standard input, since `store` may hold secrets."""

    table: str
    uri: str
    cluster_id: str
    store: dict[str, str]
    #: The method of DeltaFile, and its argument.
    work: Work
    argument: int


def done_aside(task: TableTask) -> None:
    """Have another process do it. StorageFailed: it was not done, or not all of it."""
    run_aside("spark_replication.mirror.delta.aside", msgspec.json.encode(task), f"{task.uri} did not {task.work}")


def run_aside(module: str, task: bytes, failed: str) -> bytes:
    """Have another process do it, and return what it says. StorageFailed, which begins with `failed`: as for
    `done_aside`."""
    try:
        ended = subprocess.run(
            [sys.executable, "-m", module], input=task, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise StorageFailed(f"{failed} within {TIMEOUT_S:.0f} s: it is tried again") from error
    if ended.returncode:
        said = ended.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {ended.returncode}"]
        raise StorageFailed(f"{failed}: {said[-1]}")
    return ended.stdout


def main() -> int:
    from spark_replication.mirror.delta.delta_file import DeltaFile
    from spark_replication.mirror.tables.brokers import BROKERS
    from spark_replication.mirror.tables.events import EVENTS
    from spark_replication.mirror.tables.groups import GROUPS
    from spark_replication.mirror.tables.partitions import PARTITIONS
    from spark_replication.mirror.tables.status import STATUS
    from spark_replication.mirror.tables.topics import TOPICS

    task = msgspec.json.decode(sys.stdin.buffer.read(), type=TableTask)
    tables = {table.name: table for table in (PARTITIONS, BROKERS, TOPICS, EVENTS, STATUS, GROUPS)}
    file: DeltaFile[Any] = DeltaFile(tables[task.table], task.uri, task.cluster_id, task.store)
    try:
        if task.work == "forget":
            file.forget_here(task.argument)
        else:
            file.tidy_here(task.argument)
    except ReplicationError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
