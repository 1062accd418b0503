"""What the page knows of a cluster besides its status, for a terminal: traffic, lag and events."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from spark_replication.client.asking.admin import Admin
from spark_replication.messages.mirroring import DescribeEvents
from spark_replication.model import TopicPartition
from spark_replication.page.answers import Age, Events, PartitionSize, TopicRow, Unchanged
from spark_replication.page.looking import Poller
from spark_replication.page.watch import Watch

EVENTS_S = 2.0
EVENTS_ASKED = 100  # one death may set off many


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    #: The topics, with the rates of each.
    topics: tuple[TopicRow, ...] = ()
    #: The sizes of the partitions that were asked for, as far as they are known.
    sizes: Mapping[TopicPartition, PartitionSize] = {}
    events: Events = Events(events=(), age=Age())

    @property
    def rows_per_s(self) -> float | None:
        """The sum of all topics. None if no topic has a rate yet."""
        return _sum([topic.records_per_s for topic in self.topics])

    @property
    def bytes_per_s(self) -> float | None:
        """The sum of all topics. None if no topic has a rate yet."""
        return _sum([topic.bytes_per_s for topic in self.topics])

    @property
    def lag(self) -> int | None:
        """The most rows that a follower lacks; None if unknown."""
        return max((topic.lag for topic in self.topics if topic.lag is not None), default=None)


def _sum(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


class TrafficWatch:
    """Use `watching`."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._events = Traffic().events
        # A thread of its own: the table of events may be slow, and the status must not be.
        self._look = Poller("status-events", self._ask_events, lambda: None, EVENTS_S)

    def now(self, partitions: Sequence[TopicPartition]) -> Traffic:
        """Return the last answers, at once. The cluster is asked for as long as somebody calls this."""
        self._watch.want()
        self._look.want()
        view = self._watch.view(None)
        topics = () if isinstance(view, Unchanged) else view.topics
        return Traffic(topics=topics, sizes=self._watch.sizes(partitions), events=self._events)

    def _ask_events(self) -> None:
        self._events = self._watch.events(DescribeEvents(last=EVENTS_ASKED))


@contextlib.contextmanager
def watching(admin: Admin) -> Iterator[TrafficWatch]:
    asking = Watch(admin, lambda: None)
    found = TrafficWatch(asking)
    asking.start()
    found._look.start()
    try:
        yield found
    finally:
        found._look.stop()
        asking.stop()
