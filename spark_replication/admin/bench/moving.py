"""Moves a replica of each partition of a topic to another broker whenever it is asked, in a process of its own: see
Target.mover."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

import msgspec

from spark_replication.admin.bench.programs import answer
from spark_replication.admin.bench.sending import security_of
from spark_replication.client.asking.admin import Admin
from spark_replication.client.asking.descriptions import PartitionDescription
from spark_replication.model import BrokerId, Scalar

MOVED_TIMEOUT_S = 60.0


class Work(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap: str
    #: Settings.
    security: Mapping[str, Scalar]
    topic: str


def move(admin: Admin, name: str) -> int:
    brokers = frozenset(each.id for each in admin.describe_cluster().brokers)
    (topic,) = admin.describe_topics([name])
    targets = {f"{name}-{each.partition}": _target(each, brokers) for each in topic.partitions}
    began_ns = time.perf_counter_ns()
    for refused in admin.reassign(targets).values():
        raise refused
    admin.wait_reassigned(targets, MOVED_TIMEOUT_S)
    return time.perf_counter_ns() - began_ns


def _target(partition: PartitionDescription, brokers: frozenset[BrokerId]) -> tuple[BrokerId, ...]:
    """The last replica goes to a broker that has none. Whoever leads goes on leading."""
    return (*partition.replicas[:-1], min(brokers.difference(partition.replicas)))


if __name__ == "__main__":
    work = msgspec.json.decode(sys.argv[1], type=Work)
    with Admin(work.bootstrap, security=security_of(work.security)) as asking:
        answer(lambda _: [move(asking, work.topic)])
