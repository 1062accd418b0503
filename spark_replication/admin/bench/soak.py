"""A mixed load for a long time: whether memory, descriptors, threads and files stay what they are, and acknowledgements
as fast.

Three topics: one that retention keeps small, one that is compressed besides, and one that gets another column again and
again. A producer sends batches to each in turn, and a reader follows each. Again and again a broker is killed, and
started anew after a while. The first broker, the controller and this process, which has the clients, live throughout:
what grows, grows in them.
"""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from spark_replication.admin.bench import probes
from spark_replication.admin.bench.harness import Measure, Progress, Row, rows
from spark_replication.admin.bench.ours import our_cluster
from spark_replication.admin.bench.side import BROKERS, WHOLE
from spark_replication.admin.bench.zookeeper_view import HEALTHY_TIMEOUT_S
from spark_replication.client.producing.producer import Producer
from spark_replication.client.reading.reader import Reader
from spark_replication.engine.client.sending import Ack
from spark_replication.errors import ReplicationError
from spark_replication.live.local_cluster import LocalCluster
from spark_replication.model import Scalar

ROWS = 64  # of a batch
KEPT: Mapping[str, Scalar] = {"segment.bytes": 1 << 20, "retention.bytes": 8 << 20}
TOPICS: Mapping[str, Mapping[str, Scalar]] = {"kept": KEPT, "packed": {**KEPT, "compression": "zstd"}, "widened": KEPT}
WIDENED = "widened"
COLUMNS_MAX = 40
DOWN_S = 3.0  # how long a broker is away
LASTING = 1  # the broker that is never killed
SECONDS_PER_HOUR = 3_600


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float
    batches_per_s: int
    #: Seconds from one death to the next, from one column to the next, and from one look to the next.
    kill_s: float
    widen_s: float
    sample_s: float
    seed: int


class Sample(NamedTuple):
    at_s: float
    value: float


Series = dict[tuple[str, str], list[Sample]]


def soak(plan: Plan, progress: Progress) -> list[Row]:
    with our_cluster(WHOLE, security={}) as side:
        cluster = side.cluster
        for topic, config in TOPICS.items():
            cluster.admin.create_topic(topic, _schema(1), partitions=1, replication_factor=BROKERS, config=config)
        cluster.wait_healthy(HEALTHY_TIMEOUT_S)
        load = _Load(cluster, plan)
        with load:
            series = _watched(cluster, load, plan, progress)
        progress(f"{load.acknowledged} batches were acknowledged, {load.read} were read, {load.deaths} brokers killed")
    return [row for (what, unit), samples in series.items() for row in grown(what, unit, samples)]


def _watched(cluster: LocalCluster, load: _Load, plan: Plan, progress: Progress) -> Series:
    series: Series = {}
    began_s = time.monotonic()
    told_s = began_s
    while (now_s := time.monotonic()) < began_s + plan.seconds:
        load.check()
        for what, value in _seen(cluster, load).items():
            series.setdefault(what, []).append(Sample(now_s - began_s, value))
        if now_s >= told_s:
            progress(f"{(now_s - began_s) / 60:.0f} of {plan.seconds / 60:.0f} minutes")
            told_s += 60
        time.sleep(max(0.0, now_s + plan.sample_s - time.monotonic()))
    return series


def _seen(cluster: LocalCluster, load: _Load) -> dict[tuple[str, str], float]:
    assert cluster.controller_pid is not None, "a healthy cluster has a controller"
    lasting = cluster.brokers[LASTING]
    pids = {"broker": lasting.pid, "controller": cluster.controller_pid, "clients": os.getpid()}
    found: dict[tuple[str, str], float] = {}
    for name, pid in pids.items():
        found[f"{name}, memory", "MB"] = probes.memory_kb(pid) / 1_024
        found[f"{name}, open files", ""] = probes.open_files(pid)
        found[f"{name}, threads", ""] = probes.threads(pid)
    files = [path for path in Path(lasting.log_dir).rglob("*") if path.is_file()]
    found["broker, files", ""] = len(files)
    took_ms = load.taken_ms()
    if len(took_ms) > 1:
        found["99 % of acknowledgements", "ms"] = statistics.quantiles(took_ms, n=100)[98]
    return found


def grown(what: str, unit: str, samples: Sequence[Sample]) -> list[Row]:
    """The median of the last quarter beside that of the second, and the slope of the least squares from then on. The
    first quarter is a warm-up."""
    quarter = max(1, len(samples) // 4)
    after = samples[quarter:] or samples
    slope = 0.0
    if len(after) > 1:
        slope = statistics.linear_regression([each.at_s for each in after], [each.value for each in after]).slope
    median = Measure("median", unit)
    early, late = (statistics.median(each.value for each in part) for part in (after[:quarter], after[-quarter:]))
    by_hour = {Measure("growth", f"{unit} an hour".strip(), None): slope * SECONDS_PER_HOUR}
    return rows(what, {"late": [{median: late, **by_hour}], "early": [{median: early}]})


def _schema(columns: int) -> pa.schema:
    return pa.schema([pa.field(f"c{number}", pa.int64()) for number in range(columns)])


def _batch(columns: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(random.choices(range(1 << 40), k=ROWS), pa.int64())] * columns, _schema(columns))


class _Load:
    """The threads that send, read, kill and widen. A context manager, with which they end."""

    def __init__(self, cluster: LocalCluster, plan: Plan) -> None:
        self._cluster = cluster
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._over = threading.Event()
        self._columns = 1
        self._lock = threading.Lock()  # guards everything below
        self._took_ms: list[float] = []
        self._failed: BaseException | None = None
        self.acknowledged = 0
        self.read = 0
        self.deaths = 0

    def __enter__(self) -> _Load:
        self._running = ExitStack()
        self._producer = self._running.enter_context(Producer(self._cluster.bootstrap))
        readers = [Reader(self._cluster.bootstrap) for _ in TOPICS]
        work: list[Callable[[], None]] = [self._send, self._kill, self._widen]
        work.extend(partial(self._follow, reader, topic) for reader, topic in zip(readers, TOPICS, strict=True))
        threads = [threading.Thread(target=partial(self._guarded, each), name="soak") for each in work]
        for thread in threads:
            thread.start()
            self._running.callback(thread.join)
        for reader in readers:
            self._running.callback(reader.close)
        self._running.callback(self._over.set)
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()
        self.check()

    def check(self) -> None:
        """Raises what a thread has failed with."""
        with self._lock:
            if self._failed is not None:
                raise self._failed

    def taken_ms(self) -> list[float]:
        """Take what acknowledgements have taken since the last time."""
        with self._lock:
            took, self._took_ms = self._took_ms, []
        return took

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (ReplicationError, OSError) as error:
            with self._lock:
                self._failed = self._failed or error

    def _send(self) -> None:
        began_s = time.monotonic()
        number = 0
        while not self._over.wait(max(0.0, began_s + number / self._plan.batches_per_s - time.monotonic())):
            topic = [*TOPICS][number % len(TOPICS)]
            batch = _batch(self._columns if topic == WIDENED else 1)
            future = self._producer.send(topic, batch, partition=0)
            future.add_done_callback(partial(self._answered, time.monotonic()))
            number += 1

    def _answered(self, sent_s: float, future: Future[Ack]) -> None:
        error = future.exception()
        with self._lock:
            self._took_ms.append(1_000 * (time.monotonic() - sent_s))
            self.acknowledged += error is None
            self._failed = self._failed or error

    def _follow(self, reader: Reader, topic: str) -> None:
        for _ in reader.read(topic, 0, "earliest", follow=True):
            with self._lock:
                self.read += 1

    def _kill(self) -> None:
        mortal = [broker for broker in sorted(self._cluster.brokers) if broker != LASTING]
        while not self._over.wait(self._plan.kill_s):
            broker = self._random.choice(mortal)
            self._cluster.kill_broker(broker)
            self._over.wait(DOWN_S)
            self._cluster.restart_broker(broker)
            self._cluster.wait_healthy(HEALTHY_TIMEOUT_S)
            self.deaths += 1

    def _widen(self) -> None:
        while self._columns < COLUMNS_MAX and not self._over.wait(self._plan.widen_s):
            self._cluster.admin.widen_topic(WIDENED, _schema(self._columns + 1))
            self._columns += 1
