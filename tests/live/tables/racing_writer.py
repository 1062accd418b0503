"""A writer that commits rows of its own and of everybody's partition, as a process: it says what was answered.

`python -m tests.live.tables.racing_writer URI NUMBER COMMITS`, with the store's options in the environment."""

from __future__ import annotations

import sys

import msgspec

from spark_replication.core.tables.table import RowRange
from spark_replication.errors import StorageFailed, TableChanged
from tests.contract.topic_table_cast import OfDelta

SHARED = 0
ROWS = 3


class Answers(msgspec.Struct):
    #: The ranges that were committed, as (partition, start, end).
    stored: list[tuple[int, int, int]] = []
    #: The ranges of which nobody knows.
    unknown: list[tuple[int, int, int]] = []
    refused: int = 0


def main(uri: str, number: int, commits: int) -> None:
    cast = OfDelta(uri)
    told = Answers()
    table = cast.handle()
    while len(told.stored) < 2 * commits:
        version = table.load()
        ranges = [
            RowRange(partition=partition, start=start, end=start + ROWS, last_epoch=0, confirmed_epoch=0)
            for partition in (SHARED, number)
            for start in [version.end_of(partition) or 0]
        ]
        asked = [(each.partition, each.start, each.end) for each in ranges]
        file = cast.upload(ranges)
        try:
            table.commit(version, ranges, [file])
            told.stored += asked
        except TableChanged:
            told.refused += 1
        except StorageFailed:
            told.unknown += asked
    sys.stdout.write(msgspec.json.encode(told).decode())
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
