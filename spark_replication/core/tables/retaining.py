"""What a table gives up of its oldest rows (`table.retention.*`). Pure.

Rules:
- Files go, whole. What is too old or too much is told by files: a file is as old as its newest row.
- Of each partition all rows below some offset go, and no others: what remains begins at the table's new start, and has
  no gap. A file with a row behind one that stays, stays.
- The end of a partition stays where it is, though all its rows are gone: no offset is given again, and rows go on
  there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from spark_replication.model import Count, Offset, PartitionNumber, TimeMs

NEVER = -1


class TableRetention(msgspec.Struct, frozen=True, kw_only=True):
    """The limits, as settings have them; NEVER is none."""

    ms: int = NEVER
    #: Of all files of the table.
    bytes: int = NEVER

    @property
    def is_on(self) -> bool:
        return self.ms != NEVER or self.bytes != NEVER


class AgedFile(NamedTuple):
    path: str
    size: Count
    #: The time of its newest row. None: nobody knows, and it stays.
    newest_ms: TimeMs | None


class RowsOfPartition(NamedTuple):
    """What a file has of a partition."""

    rows: Count
    #: The offset behind the last of these rows.
    end: Offset


class GivenUp(NamedTuple):
    paths: tuple[str, ...]
    #: Where the table begins without these files, of the partitions that they have rows of.
    starts: Mapping[PartitionNumber, Offset]


def beyond_limits(files: Iterable[AgedFile], retention: TableRetention, now_ms: TimeMs) -> list[AgedFile]:
    """The files that are too old, or without which there is still as much as retention.bytes: oldest first."""
    aged = list(files)
    left = sum(file.size for file in aged)
    found = []
    for file in sorted(aged, key=lambda file: (file.newest_ms or 0, file.path)):
        if file.newest_ms is None:
            continue
        is_old = retention.ms != NEVER and file.newest_ms < now_ms - retention.ms
        is_too_much = retention.bytes != NEVER and left - file.size >= retention.bytes
        if is_old or is_too_much:
            found.append(file)
            left -= file.size
    return found


def given_up(
    files: Mapping[str, Mapping[PartitionNumber, RowsOfPartition]], starts: Mapping[PartitionNumber, Offset]
) -> GivenUp:
    """As many of these files as can go. files: what each has, by its path. starts: where the table begins now.

    Each offset is in the table once: so rows are all that there are below an offset if they are as many.
    """
    going = dict(files)
    while True:
        counts: dict[PartitionNumber, int] = defaultdict(int)
        ends: dict[PartitionNumber, Offset] = {}
        for found in going.values():
            for partition, has in found.items():
                counts[partition] += has.rows
                ends[partition] = max(has.end, ends.get(partition, 0))
        broken = {
            partition: end
            for partition, end in ends.items()
            if partition not in starts or starts[partition] + counts[partition] != end
        }
        if not broken:
            return GivenUp(tuple(sorted(going)), ends)
        # A row that stays is below the last one of these: so that one stays, too.
        going = {path: found for path, found in going.items() if not _has_last(found, broken)}


def _has_last(found: Mapping[PartitionNumber, RowsOfPartition], ends: Mapping[PartitionNumber, Offset]) -> bool:
    return any(partition in found and found[partition].end == end for partition, end in ends.items())
