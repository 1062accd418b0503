"""Whether a table is what it says: each partition's offsets are there once, without gaps, up to its end (TB1).

A table may begin anywhere, and says where. What is remembered of its rows is where runs of them begin and end: as many
as there are groups of rows in its files, while these are sorted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from spark_replication.core.tables.table import TableVersion
from spark_replication.model import Offset, PartitionNumber
from spark_replication.tables.types import OFFSET, PARTITION

FAULTS_MAX = 1_000

#: A partition's rows [start, end).
Run = tuple[PartitionNumber, Offset, Offset]


class TableFault(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with the rows [start, end) of a partition."""

    partition: PartitionNumber
    #: "missing" from the start to the end that the table's transactions name; "double": there more than once; "before
    #: the start", "behind the end": there, although the transaction says otherwise.
    what: str
    start: Offset
    end: Offset


def faults_of(opened: DeltaTable, version: TableVersion) -> list[TableFault]:
    """What is wrong with the version that is open, whose transactions are those of `version`: the first FAULTS_MAX."""
    return faults(_runs_of(opened), version)


def faults(runs: Iterable[Run], version: TableVersion) -> list[TableFault]:
    """As `faults_of`, of the runs of a table's rows, which come in any order."""
    of_partitions: dict[PartitionNumber, list[tuple[Offset, Offset]]] = defaultdict(list)
    for partition, start, end in runs:
        of_partitions[partition].append((start, end))
    found: list[TableFault] = []
    for partition in sorted({*of_partitions, *version.ends}):
        told_start, told_end = version.starts.get(partition), version.end_of(partition) or 0
        for what, start, end in _faults(sorted(of_partitions[partition]), told_start, told_end):
            if len(found) < FAULTS_MAX:
                found.append(TableFault(partition=partition, what=what, start=start, end=end))
    return found


def _faults(
    runs: list[tuple[Offset, Offset]], told_start: Offset | None, told_end: Offset
) -> Iterator[tuple[str, Offset, Offset]]:
    """runs: of one partition, sorted. told_start and told_end: by its transactions; None and 0: it has none."""
    first = runs[0][0] if runs else told_end
    reached = first if told_start is None else min(first, told_start)
    if told_start is not None and first < told_start:
        yield "before the start", first, told_start
    for start, end in runs:
        if start < reached:
            yield "double", start, min(end, reached)
        elif start > reached:
            yield "missing", reached, start
        reached = max(reached, end)
    if reached < told_end:
        yield "missing", reached, told_end
    elif reached > told_end:
        yield "behind the end", told_end, reached


def runs_in(partitions: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64]) -> list[Run]:
    """The runs of rows that lie one after the other."""
    if not len(offsets):
        return []
    breaks = (np.diff(offsets) != 1) | (np.diff(partitions) != 0)
    starts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    lasts = np.concatenate((starts[1:] - 1, [len(offsets) - 1]))
    return list(zip(partitions[starts].tolist(), offsets[starts].tolist(), (offsets[lasts] + 1).tolist(), strict=True))


def _runs_of(opened: DeltaTable) -> Iterator[Run]:
    query = QueryBuilder().register("rows", opened).execute(f'SELECT "{PARTITION}", "{OFFSET}" FROM rows')
    for batch in pa.RecordBatchReader.from_stream(query):
        yield from runs_in(batch.column(0).to_numpy(), batch.column(1).to_numpy())
