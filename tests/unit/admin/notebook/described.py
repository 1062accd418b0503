"""Partitions, topics and events as a controller tells them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from spark_replication.client.asking.descriptions import PartitionDescription, TopicDescription
from spark_replication.messages.mirroring import ToldEvent

HOSTILE = "</script><b>&"

Lead = tuple[int | None, int]


def partition(number: int = 0, leader: int | None = 1, **told: Any) -> PartitionDescription:
    fields: dict[str, Any] = {
        "leader_epoch": 0,
        "partition_epoch": 0,
        "replicas": (2, 1),
        "isr": (2, 1),
        "elr": (),
        "last_known_elr": (),
        "last_known_leader": None,
        "min_isr": 1,
        "recovering": False,
    }
    return PartitionDescription(partition=number, leader=leader, **{**fields, **told})


def topic(*partitions: PartitionDescription, name: str = "orders", **told: Any) -> TopicDescription:
    return TopicDescription(**{"name": name, "topic_id": "a", "partitions": partitions, "config": {}, **told})


def event(number: int, at_ms: int, was: Lead | None, became: Lead | None, **told: Any) -> ToldEvent:
    """Of orders-0, if it is not said."""
    fields: dict[str, Any] = {"kind": "elected", "topic": "orders", "partition": 0, "because": "broker 1 gone"}
    return ToldEvent(number=number, at_ms=at_ms, was=face(was), became=face(became), **{**fields, **told})


def face(lead: Lead | None) -> dict[str, Any] | None:
    return None if lead is None else {"leader": lead[0], "leader_epoch": lead[1], "isr": [1]}


def least_cpu_s(run: Callable[[], object]) -> float:
    """The least of three runs: Python's collector may look at all that other tests have left in this process."""

    def cpu_s() -> float:
        began_s = time.process_time()
        run()
        return time.process_time() - began_s

    return min(cpu_s() for _ in range(3))
