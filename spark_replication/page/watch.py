"""Watches the cluster while somebody looks at the page, and seldom while nobody does, so that its charts are there
before somebody looks. All viewers share one question, and its answer is kept.

Each kind of question has a thread and an age of its own, so that none waits for another: who leads what, how large logs
are, and what caused the present trouble.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from spark_replication.client.asking.health import Health, health_of
from spark_replication.client.asking.replica_sizes import moving_of, reassignments_of
from spark_replication.core.moves.planning import named_partition
from spark_replication.messages.descriptions import Metadata
from spark_replication.messages.mirroring import DescribeEvents, ToldEvent
from spark_replication.model import BrokerId, TopicPartition
from spark_replication.page.answers import (
    AclsShown,
    Age,
    BrokerDetail,
    Events,
    PartitionDetail,
    PartitionSize,
    SettingsInForce,
    TopicDetail,
    Unchanged,
    View,
)
from spark_replication.page.asking import NO_SIZES, Cluster, Sizes, asked_sizes
from spark_replication.page.board import Board
from spark_replication.page.details import ShownState, broker_detail, partition_detail, partition_sizes, topic_detail
from spark_replication.page.groups import GroupsWatch
from spark_replication.page.history import History
from spark_replication.page.looking import Poller
from spark_replication.page.recent_events import RecentEvents
from spark_replication.page.recent_settings import RecentAcls, RecentSettings, SettingsOf
from spark_replication.process.threads import now_ms

LOOK_S = 0.5  # what has happened is seen after half a second at most, if the cluster is not too large
SIZES_S = 2.0
# While nobody looks. Less than history.GAP_MS, so that the charts have no gaps.
SELDOM_S = 15.0
CAUSES_S = 1.0
CAUSES_KEPT_S = 2.0  # then the question is repeated: the mirror may learn of a cause a moment later
REASONS_MAX = 100

CLUSTER, SIZES = "cluster", "sizes"


class Watch:
    """Thread-safe."""

    def __init__(self, cluster: Cluster, changed: Callable[[], None], *, seldom_s: float | None = None) -> None:
        """seldom_s: how often the cluster is asked while nobody looks, from the start on. None: not at all."""
        self._cluster = cluster
        #: Called after each look, whether or not it has found something new, on the thread of a question.
        self._changed = changed
        self._events = RecentEvents(cluster)
        self._settings = RecentSettings(cluster)
        self._acls = RecentAcls(cluster)
        #: Asks on a thread of its own, while somebody looks at groups.
        self.groups = GroupsWatch(cluster, changed)
        self._causes = _Causes(self._events)
        self._showing = threading.Lock()  # held while showing, so that nothing older replaces what is shown
        self._lock = threading.Lock()  # guards what follows; never held while the cluster is asked
        self._board = Board(version=now_ms())
        self._history = History()
        self._sizes: Sizes = NO_SIZES
        self._health: tuple[Metadata, _Told, Health] | None = None
        self._metadata: Metadata | None = None
        self._look = Poller("page-look", self._ask_cluster, self._show, LOOK_S, seldom_s=seldom_s)
        self._size_look = Poller("page-sizes", self._ask_sizes, self._show, SIZES_S, seldom_s=seldom_s)
        self._cause_look = Poller("page-causes", self._causes.ask, lambda: None, CAUSES_S)
        self._looks = (self._look, self._size_look, self._cause_look)
        self._is_kept_up = seldom_s is not None

    def start(self) -> None:
        for look in self._looks:
            look.start()
        self.groups.start()
        if self._is_kept_up:
            self.want()

    def stop(self) -> None:
        for look in self._looks:
            look.end()
        self.groups.stop()
        for look in self._looks:
            look.stop()

    def want(self) -> None:
        """Note that somebody looks. Until the cluster has answered, it alone is asked: its answer names the brokers."""
        for look in self._looks if self._metadata is not None else (self._look,):
            look.want()

    # The questions, each on its own thread

    def _ask_cluster(self) -> None:
        metadata = self._cluster.metadata_since(self._metadata)
        with self._lock:
            is_first = self._metadata is None
            if metadata != self._metadata:
                self._metadata = metadata
        if is_first:
            self.want()

    def _ask_sizes(self) -> None:
        metadata = self._metadata
        assert metadata is not None, "it names the brokers, and so comes first"
        addresses = {broker: found.address for broker, found in sorted(metadata.brokers.items())}
        sizes = asked_sizes(self._cluster, addresses, now_ms())
        measures, bytes_on = sizes.measures(), sizes.bytes_on()
        with self._lock:
            self._sizes = sizes
            if self._history.is_due(sizes.at_ms):
                self._history.note(sizes.at_ms, measures, bytes_on)

    def _show(self) -> None:
        with self._showing:
            self._show_newest()

    def _show_newest(self) -> None:
        with self._lock:
            metadata, sizes = self._metadata, self._sizes
        health = None if metadata is None else self._health_of(metadata)
        moves = [] if metadata is None else reassignments_of(moving_of(metadata), sizes.leaders.values())
        with self._lock:
            self._board.show(
                metadata,
                health,
                sizes,
                totals=self._history.totals,
                moves=moves,
                errors=[self._look.age.error, self._size_look.age.error],
            )
        self._changed()

    def _health_of(self, metadata: Metadata) -> Health:
        """The cluster's health, kept for as long as nothing of it is new: computing it looks at each partition."""
        told, known = self._causes.told, self._health
        if known is not None and known[0] is metadata and known[1] is told:
            return known[2]
        wanted: DescribeEvents | None = None

        def remembered(asked: DescribeEvents) -> tuple[ToldEvent, ...]:
            nonlocal wanted
            wanted = asked
            return self._causes.remembered(asked)

        found = health_of(metadata, remembered)
        self._causes.wanted = wanted
        found = msgspec.structs.replace(
            found, reasons=found.reasons[:REASONS_MAX], incidents=found.incidents[:REASONS_MAX]
        )
        self._health = (metadata, told, found)
        return found

    # What is shown

    @property
    def version(self) -> int:
        return self._board.version

    @property
    def tries(self) -> int:
        """How often the cluster was asked for its metadata."""
        return self._look.tries

    @property
    def age(self) -> Age:
        return self._look.age

    @property
    def mark(self) -> str:
        """The ETag of details: it changes whenever one of them may have changed."""
        newest = self._history.newest_ms
        return f"{self._board.version}-{newest}-{self._sizes.at_ms}"

    def view(self, since: int | None) -> View | Unchanged:
        ages = {CLUSTER: self._look.age, SIZES: self._size_look.age}
        with self._lock:
            return self._board.view(since, now_ms(), ages)

    def topic(self, name: str) -> TopicDetail | None:
        with self._lock:
            return topic_detail(self._seen(), name)

    def sizes(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionSize]:
        with self._lock:
            return partition_sizes(self._seen(), partitions)

    def partition(self, topic: str, number: int) -> PartitionDetail | None:
        with self._lock:
            return partition_detail(self._seen(), topic, number)

    def broker(self, broker: BrokerId) -> BrokerDetail | None:
        with self._lock:
            return broker_detail(self._seen(), broker)

    def _seen(self) -> ShownState:
        return ShownState(self._board, self._sizes, self._history, self._size_look.age)

    def events(self, asked: DescribeEvents) -> Events:
        return self._events.about(asked)

    def settings(self, of: SettingsOf) -> SettingsInForce:
        return self._settings.about(of)

    def acls(self) -> AclsShown:
        return self._acls.about(None)

    def metrics(self, broker: BrokerId | None) -> str:
        return self._cluster.metrics(broker)

    def group_metrics(self) -> str:
        return self._cluster.group_metrics()

    def not_ready(self) -> str:
        """Why the cluster is not ready; empty if it is."""
        age = self.age
        if age.error or age.as_of_ms is None:
            return age.error or "the cluster was not asked yet"
        health = self._board.health
        return "there is no controller" if health is None or health.controller is None else ""


class _Told(NamedTuple):
    asked: DescribeEvents | None
    events: tuple[ToldEvent, ...]


NOTHING_TOLD = _Told(None, ())


class _Causes:
    def __init__(self, events: RecentEvents) -> None:
        self._events = events
        #: The question for the events that explain the reasons of the verdict; None if nothing is to be explained.
        self.wanted: DescribeEvents | None = None
        self.told = NOTHING_TOLD
        self._asked_s = 0.0

    def remembered(self, asked: DescribeEvents) -> tuple[ToldEvent, ...]:
        """Return at once the last answer to this very question. It may be old: `explained` knows an earlier trouble."""
        return self.told.events if self.told.asked == asked else ()

    def ask(self) -> None:
        """Ask for the wanted events, on the thread of causes. A failure is not reported: the mirror's trouble is among
        the reasons."""
        wanted = self.wanted
        if wanted is None:
            self.told = NOTHING_TOLD  # if the same trouble comes again, it has another cause
            return
        if wanted == self.told.asked and time.monotonic() < self._asked_s + CAUSES_KEPT_S:
            return
        self._asked_s = time.monotonic()
        found = _Told(wanted, self._events.about(wanted).events)
        if found != self.told:
            self.told = found


def events_asked(
    partition: str | None, topic: str | None, broker: int | None, cause: str | None, last: int
) -> DescribeEvents:
    """The question for these events. Raises InvalidRequest if `partition` is no name of a partition."""
    return DescribeEvents(
        partitions=() if partition is None else (named_partition(partition),),
        topics=() if topic is None else (topic,),
        brokers=() if broker is None else (broker,),
        cause=cause,
        last=last,
    )
