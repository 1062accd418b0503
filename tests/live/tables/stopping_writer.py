"""A writer of topics' tables, as a process that kills or stops itself at a step that the test names.

`python -m tests.live.tables.stopping_writer BOOTSTRAP`, with the store's options in the environment. It says READY, and
then performs each Order, a line of JSON on its standard input: its answer is a line, Told. After SIGSTOP it goes on
where it was.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, Literal

import msgspec
from deltalake import DeltaTable

from spark_replication.client.finding.routes import Routes
from spark_replication.client.reading.reader import Reader
from spark_replication.engine.client.table_writing import (
    AskLeaders,
    ConfirmRows,
    Doing,
    LoadTable,
    ReadPlanned,
    TellEnds,
)
from spark_replication.errors import ReplicationError
from spark_replication.live.tables.table_writers import TableWriters
from spark_replication.live.tables.topic_writer import TopicTableWriter
from spark_replication.mirror.delta.object_store import StoreOptions
from spark_replication.tables.delta_table import DeltaTopicTable
from spark_replication.tables.folder import TableFolder
from spark_replication.tables.parquet_files import TableFiles

READY = "ready"
STORE = "TABLE_STORE"  # in the environment: JSON of delta-rs' options
When = Literal["before", "after"]
BEFORE: When = "before"
AFTER: When = "after"

_OF_DOING = {LoadTable: "load", AskLeaders: "ask", TellEnds: "tell", ReadPlanned: "read", ConfirmRows: "confirm"}
_OF_METHOD = {
    "upload": (TableFiles, "close"),
    "commit": (DeltaTopicTable, "commit"),
    "store": (DeltaTable, "create_write_transaction"),
    "sync": (TableFolder, "sync_version"),
    "drop": (TableFiles, "drop"),
}
#: All that a writer does, in the order of a flush.
STEPS = (*_OF_DOING.values(), *_OF_METHOD)


class End(msgspec.Struct, frozen=True):
    """It comes when this step is done for the nth time."""

    step: str
    when: When
    nth: int
    is_killed: bool


class Order(msgspec.Struct, frozen=True):
    patience_s: float
    end: End | None


class Told(msgspec.Struct, frozen=True):
    rows: int = 0
    refused: int = 0
    #: Why not all was written; empty if it was.
    trouble: str = ""


class Ending:
    """Ends this process as it was ordered."""

    def __init__(self) -> None:
        self._end: End | None = None
        self._left = 0

    def heed(self, end: End | None) -> None:
        self._end, self._left = end, 0 if end is None else end.nth

    def reached(self, step: str, when: When) -> None:
        if self._end is None or (self._end.step, self._end.when) != (step, when):
            return
        self._left -= 1
        if self._left == 0:
            end, self._end = self._end, None
            os.kill(os.getpid(), signal.SIGKILL if end.is_killed else signal.SIGSTOP)

    def around(self, owner: type, name: str, step_of: Callable[..., str | None]) -> None:
        """Have each call of this method be a step. step_of: of the call's arguments; None: it is none."""
        performed = getattr(owner, name)

        @functools.wraps(performed)
        def performs(*arguments: Any, **others: Any) -> Any:
            step = step_of(*arguments)
            if step is not None:
                self.reached(step, BEFORE)
            found = performed(*arguments, **others)
            if step is not None:
                self.reached(step, AFTER)
            return found

        setattr(owner, name, performs)


def _doing_of(_writer: TopicTableWriter, doing: Doing) -> str | None:
    return _OF_DOING.get(type(doing))


def _named(step: str) -> Callable[..., str]:
    return lambda *_: step


def main(bootstrap: str) -> None:
    store = msgspec.json.decode(os.environ[STORE], type=dict[str, str])
    logging.basicConfig()
    ending = Ending()
    ending.around(TopicTableWriter, "_done", _doing_of)
    for step, (owner, name) in _OF_METHOD.items():
        ending.around(owner, name, _named(step))
    with closing(Routes(bootstrap)) as routes, Reader(bootstrap, prefer="near") as reader:
        _say(READY)
        for line in sys.stdin:
            order = msgspec.json.decode(line, type=Order)
            ending.heed(order.end)
            _say(msgspec.json.encode(_written(routes, reader, store, order.patience_s)).decode())
    os._exit(0)  # delta-rs' threads may abort a process that ends in any other way


def _written(routes: Routes, reader: Reader, store: StoreOptions, patience_s: float) -> Told:
    writers = TableWriters(routes, reader, store, at_once=True)
    trouble = ""
    try:
        writers.write_once(patience_s, _rests)
    except ReplicationError as error:
        writers.close()
        trouble = str(error)
    found = [each.written for each in writers.all]
    return Told(sum(each.rows for each in found), sum(each.refused for each in found), trouble)


def _rests(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
