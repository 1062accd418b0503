"""Where a row goes by its key, and who leads there, from the Delta tables: without Spark, ZooKeeper or brokers (M5).

The bytes of a key, here and for Spark's columns (spark.leaders):
- of one column: the UTF-8 of its value cast to string; binary as it is; null as the empty string;
- of several columns: the bytes of each, joined with U+001F.
Any other bytes lead to another partition: a producer that sends by such a key must make the same ones.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np
import numpy.typing
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import TableNotFoundError

from spark_replication.errors import InvalidRequest, StorageFailed, UnknownTopicOrPartition
from spark_replication.mirror.brokers import BROKERS
from spark_replication.mirror.load import UNREADABLE, read_table, reason_of
from spark_replication.mirror.partitions import PARTITIONS
from spark_replication.mirror.paths import mirror_path
from spark_replication.model import BrokerId, Epoch

SEPARATOR = b"\x1f"
# The text of other types depends on settings, or on who writes it: a time zone, digits of a float, zeros of a decimal.
KEY_TYPES = "text, binary, whole numbers, booleans and dates can be keys; cast others to string yourself"

_AS_TEXT = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_date32,
    pa.types.is_null,
)
_AS_BYTES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


class Leader(NamedTuple):
    leader: BrokerId
    #: host:port
    address: str
    leader_epoch: Epoch


# By topic and partition, in ascending order. None: no leader has confirmed that it leads.
_Leaders = dict[str, dict[int, Leader | None]]


class LeaderTable:
    """Routes inside executors (mapInArrow, a UDF). It may be pickled, and reads the tables anew once it is unpickled.

    It reads the tables when it is first asked, and then only by `refresh`. Call that after an error with
    `stale_routes`; and after None from `route`, having waited a moment.
    """

    def __init__(self, path: str | None = None) -> None:
        """path: the mirror.path of a cluster, as executors reach it."""
        self._path = mirror_path(path)
        self._read: _Leaders | None = None  # replaced as a whole: threads may share this table

    def __reduce__(self) -> tuple[type[LeaderTable], tuple[str]]:
        return LeaderTable, (self._path,)

    def partition_of(self, topic: str, keys: pa.Array) -> pa.Array:
        """The partition of each key, as Producer.send chooses it for the same `key_bytes`."""
        numbers = np.array(list(self._partitions(topic)), np.int32)
        return pa.array(numbers[crc32_of(key_bytes(keys)) % len(numbers)])

    def route(self, topic: str, partition: int) -> Leader | None:
        """The leader of a partition; None if none has confirmed yet that it leads. Any broker knows as soon as one
        has."""
        partitions = self._partitions(topic)
        if partition not in partitions:
            raise UnknownTopicOrPartition(
                f"the tables at {self._path} have no {topic}-{partition}, of {topic} they have {list(partitions)}: "
                "choose one of these, or refresh if it is new"
            )
        return partitions[partition]

    def refresh(self) -> None:
        """Reads the tables. InvalidRequest: there are none. StorageFailed: they cannot be read now, and the routes
        stay."""
        try:
            # In this order, since the mirror writes where a broker is before it writes that the broker leads.
            wanted = ["topic", "partition", "leader", "leader_epoch", "active_epoch"]
            partitions = read_table(PARTITIONS.name, self._path, columns=wanted)
            brokers = read_table(BROKERS.name, self._path, columns=["broker", "host", "port"])
        except TableNotFoundError as error:
            raise InvalidRequest(
                f"there are no tables at {self._path} ({reason_of(error)}): name the mirror.path of a cluster"
            ) from error
        except UNREADABLE as error:
            raise StorageFailed(f"the tables at {self._path} cannot be read ({reason_of(error)}): retry") from error
        self._read = _leaders(partitions, brokers)

    def _partitions(self, topic: str) -> dict[int, Leader | None]:
        if self._read is None:
            self.refresh()
        found = (self._read or {}).get(topic)
        if found is None:
            raise UnknownTopicOrPartition(
                f"the tables at {self._path} have no topic {topic!r}: check its name, or refresh if it is new"
            )
        return found


def key_bytes(keys: pa.Array) -> pa.Array:
    """The bytes of each key, by the rule above. A struct is a key of several columns."""
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    if not pa.types.is_struct(keys.type):
        return _bytes_of_column(keys)
    columns = [_bytes_of_column(column) for column in keys.flatten()]
    if not columns:
        raise InvalidRequest("a key of no column: name one at least")
    return pc.binary_join_element_wise(*columns, pa.scalar(SEPARATOR, pa.large_binary()))


def crc32_of(keys: pa.Array) -> numpy.typing.NDArray[np.uint32]:
    """The CRC-32 of each, as `core.routing` and Spark's crc32() compute it. Arrow has none, so it is computed once for
    each distinct key, in a loop written in C."""
    distinct = keys.dictionary_encode()
    values = distinct.dictionary
    found = np.fromiter(map(zlib.crc32, values.to_pylist()), np.uint32, len(values))
    crcs: numpy.typing.NDArray[np.uint32] = found[distinct.indices.to_numpy(zero_copy_only=False)]
    return crcs


def _bytes_of_column(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if any(is_type(column.type) for is_type in _AS_TEXT):
        column = column.cast(pa.large_string())
    elif not any(is_type(column.type) for is_type in _AS_BYTES):
        raise InvalidRequest(f"a column of {column.type} cannot be a key: {KEY_TYPES}")
    return column.cast(pa.large_binary()).fill_null(b"")


def _leaders(partitions: pa.Table, brokers: pa.Table) -> _Leaders:
    addresses = {row["broker"]: f"{row['host']}:{row['port']}" for row in brokers.to_pylist()}
    found: _Leaders = {}
    for row in partitions.sort_by([("topic", "ascending"), ("partition", "ascending")]).to_pylist():
        leader, epoch = row["leader"], row["leader_epoch"]
        confirmed = row["active_epoch"] == epoch and leader in addresses
        found.setdefault(row["topic"], {})[row["partition"]] = (
            Leader(leader, addresses[leader], epoch) if confirmed else None
        )
    return found
