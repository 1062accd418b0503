"""Which partition a row goes to: by its key, or by its column _partition. Else all rows of one turn go to the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing
import pyarrow as pa

from spark_replication.errors import InvalidRequest
from spark_replication.mirror.keys import crc32_of, key_bytes

PARTITION = "_partition"  # the column in which a row names its partition

# Arrow takes no rows of the first: they are taken as the second.
_TAKEN_AS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


class Placing:
    """Places rows on the `partitions` of a topic: by the key columns `by`. Without those, by the column _partition, or
    by `turn`, which is the number of a query's task or of a batch."""

    def __init__(self, topic: str, partitions: Sequence[int], by: Sequence[str], turn: int) -> None:
        self._topic = topic
        self._partitions = np.array(sorted(partitions))
        self._by = list(by)
        self._of_turn = int(self._partitions[turn % len(self._partitions)])

    def parts(self, batch: pa.RecordBatch, stored: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each partition, in their order. `stored` has the rows of `batch` as they go into the log."""
        if not batch.num_rows:
            return
        targets = self._targets(batch)
        if targets is None:
            yield self._of_turn, stored
            return
        order = np.argsort(targets, kind="stable")
        columns = [_taken(column, pa.array(order)) for column in stored.columns]
        sorted_rows = pa.RecordBatch.from_arrays(columns, schema=stored.schema)
        found, firsts = np.unique(targets[order], return_index=True)
        for target, first, end in zip(found.tolist(), firsts.tolist(), [*firsts.tolist()[1:], len(order)], strict=True):
            yield target, sorted_rows.slice(first, end - first)

    def _targets(self, batch: pa.RecordBatch) -> numpy.typing.NDArray[np.int64] | None:
        if self._by:
            columns = [batch.column(name) for name in self._by]
            key = columns[0] if len(columns) == 1 else pa.StructArray.from_arrays(columns, names=self._by)
            return np.take(self._partitions, crc32_of(key_bytes(key)) % len(self._partitions))
        if PARTITION not in batch.schema.names:
            return None
        named = batch.column(PARTITION)
        if named.null_count:
            raise InvalidRequest(f"{named.null_count} rows have no {PARTITION}: give each the number of a partition")
        targets: numpy.typing.NDArray[np.int64] = named.to_numpy(zero_copy_only=False).astype(np.int64)
        others = np.setdiff1d(targets, self._partitions)
        if len(others):
            raise InvalidRequest(
                f"{PARTITION} is {others[:5].tolist()} in some rows, and {self._topic} has the partitions "
                f"{self._partitions.tolist()}: name these"
            )
        return targets


def _taken(column: pa.Array, order: pa.Array) -> pa.Array:
    taken_as = _TAKEN_AS.get(column.type)
    return column.take(order) if taken_as is None else column.cast(taken_as).take(order).cast(column.type)
