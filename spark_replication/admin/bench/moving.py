"""Moves a replica of each partition of a topic from one broker to another, and back, again and again:
`python -m spark_replication.admin.bench.moving '{…}'`.

lasting says what it prints. It has begun with the first move, and ends after a whole one.
"""

from __future__ import annotations

import sys
import threading
import time
from functools import partial

import msgspec

from spark_replication.admin.bench.talking import Done, last
from spark_replication.client.asking.admin import Admin
from spark_replication.client.asking.descriptions import PartitionDescription
from spark_replication.model import BrokerId

MOVED_TIMEOUT_S = 60.0


class Work(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap: str
    topic: str
    #: Of each partition.
    bytes: int


def move(work: Work, begun: threading.Event, ended: threading.Event) -> Done:
    moved = 0
    with Admin(work.bootstrap) as admin:
        brokers = frozenset(each.id for each in admin.describe_cluster().brokers)
        began_s = time.perf_counter()
        while not ended.is_set():
            (topic,) = admin.describe_topics([work.topic])
            targets = {f"{work.topic}-{each.partition}": _target(each, brokers) for each in topic.partitions}
            for refused in admin.reassign(targets).values():
                raise refused
            begun.set()
            admin.wait_reassigned(targets, MOVED_TIMEOUT_S)
            moved += len(targets)
        return Done(bytes=moved * work.bytes, seconds=time.perf_counter() - began_s)


def _target(partition: PartitionDescription, brokers: frozenset[BrokerId]) -> tuple[BrokerId, ...]:
    """The last replica goes to a broker that has none. Whoever leads goes on leading."""
    return (*partition.replicas[:-1], min(brokers.difference(partition.replicas)))


if __name__ == "__main__":
    last(partial(move, msgspec.json.decode(sys.argv[1], type=Work)))
