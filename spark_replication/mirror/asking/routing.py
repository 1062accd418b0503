"""Where a row goes by its key, and who leads there, from the Delta tables: without Spark, ZooKeeper or brokers (M5)."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
from deltalake.exceptions import TableNotFoundError

from spark_replication.errors import InvalidRequest, StorageFailed, UnknownTopicOrPartition
from spark_replication.mirror.asking.load import UNREADABLE, read_table, reason_of
from spark_replication.mirror.delta.paths import mirror_path
from spark_replication.mirror.tables.brokers import BROKERS
from spark_replication.mirror.tables.keys import key_bytes, places_of
from spark_replication.mirror.tables.partitions import PARTITIONS
from spark_replication.model import BrokerId, Epoch


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
        numbers = pa.array(self._partitions(topic), pa.int32())
        return numbers.take(places_of(key_bytes(keys), len(numbers)))

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
        """Read the tables. InvalidRequest: there are none. StorageFailed: they cannot be read now, and the routes
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
