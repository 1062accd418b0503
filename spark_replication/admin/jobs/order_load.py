"""Produces the example's orders: batches with ids in order, at a steady rate, to all partitions in turn."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from threading import Event

import msgspec
import numpy as np
import pyarrow as pa

from spark_replication.client.asking.admin import Admin
from spark_replication.client.producing.producer import Producer
from spark_replication.engine.client.sending import Ack
from spark_replication.errors import ReplicationError, TopicAlreadyExists
from spark_replication.model import Scalar

TOPIC = "orders"
SCHEMA = pa.schema([("id", pa.int64()), ("at_ms", pa.int64()), ("amount", pa.float64())])
WAITING_MAX = 1_000  # batches without an answer
TOLD_EVERY_S = 1.0
PENNIES = 10_000  # amounts go from 0 to 99.99, and begin again


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    #: None if the load is without end.
    rows: int | None
    #: None if the load ends only once all rows are sent.
    seconds: float | None
    #: 0 for as fast as the brokers take them.
    rows_per_s: int
    batch_rows: int


class Produced(msgspec.Struct, kw_only=True):
    """The sums of the batches that have an answer."""

    rows: int = 0
    batches: int = 0
    refused_rows: int = 0
    seconds: float = 0.0
    #: The slowest answer since the sums were last told.
    slowest_ms: float = 0.0
    #: The first refusal.
    error: ReplicationError | None = None

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0


def order_batch(first_id: int, rows: int, at_ms: int) -> pa.RecordBatch:
    ids = np.arange(first_id, first_id + rows, dtype=np.int64)
    amounts = (ids % PENNIES) / 100
    return pa.record_batch([pa.array(ids), pa.array(np.full(rows, at_ms)), pa.array(amounts)], schema=SCHEMA)


def topic_partitions(admin: Admin, topic: str, partitions: int, config: Mapping[str, Scalar] = {}) -> int:
    """How many partitions the topic has. It is created, with these settings, if it is not there."""
    with suppress(TopicAlreadyExists):
        if topic not in {found.name for found in admin.describe_topics()}:
            return len(admin.create_topic(topic, SCHEMA, partitions=partitions, config=config).partitions)
    (found,) = admin.describe_topics([topic])
    return len(found.partitions)


class OrderLoad:
    """Sends orders. `run` returns after the last answer. A refused batch ends the load: the rows behind it may be
    stored already."""

    def __init__(self, producer: Producer, topic: str, partitions: int, rate: Rate) -> None:
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._rate = rate
        self._waiting: deque[tuple[Future[Ack], int, float]] = deque()
        self._produced = Produced()

    def run(self, stopping: Event, tell: Callable[[Produced], None]) -> Produced:
        began = told = time.monotonic()
        sent = 0
        while self._produced.error is None and not stopping.is_set():
            passed = time.monotonic() - began
            rows = self._next_rows(sent, passed)
            if rows == 0:
                break
            self._send(sent, rows)
            sent += rows
            self._take_answers(WAITING_MAX)
            if time.monotonic() - told >= TOLD_EVERY_S:
                told = time.monotonic()
                self._produced.seconds = told - began
                tell(self._produced)
                self._produced.slowest_ms = 0.0
            if self._rate.rows_per_s:
                stopping.wait(max(0.0, began + sent / self._rate.rows_per_s - time.monotonic()))
        self._take_answers(0)
        self._produced.seconds = time.monotonic() - began
        return self._produced

    def _next_rows(self, sent: int, passed_s: float) -> int:
        if self._rate.seconds is not None and passed_s >= self._rate.seconds:
            return 0
        left = self._rate.batch_rows if self._rate.rows is None else self._rate.rows - sent
        return min(left, self._rate.batch_rows)

    def _send(self, first_id: int, rows: int) -> None:
        batch = order_batch(first_id, rows, time.time_ns() // 1_000_000)
        partition = first_id // self._rate.batch_rows % self._partitions
        future = self._producer.send(self._topic, batch, partition=partition)
        self._waiting.append((future, rows, time.monotonic()))

    def _take_answers(self, waiting_max: int) -> None:
        """Take the answers that have come. Wait for the oldest until at most `waiting_max` batches have none."""
        while self._waiting and (len(self._waiting) > waiting_max or self._waiting[0][0].done()):
            future, rows, sent_at = self._waiting.popleft()
            error = future.exception()
            if error is None:
                self._produced.rows += rows
                self._produced.batches += 1
                self._produced.slowest_ms = max(self._produced.slowest_ms, (time.monotonic() - sent_at) * 1000)
            elif isinstance(error, ReplicationError):
                self._produced.refused_rows += rows
                self._produced.error = self._produced.error or error
            else:
                raise error
