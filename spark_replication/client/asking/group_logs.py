"""What leaders say of the logs that groups read: how much there is, and since when what a group has not committed.

Each partition is asked about once, however many groups read it. After that each place at which some group is behind is
asked for its time, TIMED_MAX at most, those first behind which most has come: a group that is at the end costs nothing
more. What a leader does not say is not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.ranges import ranges_at
from spark_replication.client.finding.routes import Routes
from spark_replication.errors import ReplicationError
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.messages.envelope import NONE
from spark_replication.messages.groups import DescribedPosition
from spark_replication.messages.ranges import FoundRange, WantedRange
from spark_replication.model import BrokerId, Offset, Registration, TimeMs, TopicPartition

RANGES_A_CALL = 2_000
TIMED_MAX = 20_000

#: A partition, and where a group goes on in it.
Place = tuple[TopicPartition, Offset]


class LogSeen(NamedTuple):
    """A log, from where a group goes on."""

    topic_id: str
    log_start: Offset
    #: Of what is committed.
    end: Offset
    #: When the first record that the group has not committed was appended. None: there is none.
    since_ms: TimeMs | None
    #: Whether that is known.
    is_timed: bool


class GroupLogs:
    def __init__(self, topics: Iterable[TopicMetadata], brokers: Mapping[BrokerId, Registration]) -> None:
        #: Where the leader of each partition is reached.
        self._leaders: dict[TopicPartition, str] = {}
        for topic in topics:
            for each in topic.partitions:
                registered = None if each.state.leader is None else brokers.get(each.state.leader)
                if registered is not None:
                    self._leaders[each.topic_partition] = registered.address
        self._ends: dict[TopicPartition, FoundRange] = {}
        self._timed: dict[Place, FoundRange] = {}

    def ask(
        self,
        routes: Routes,
        read: Collection[tuple[TopicPartition, DescribedPosition | None]],
        deadline: Deadline,
    ) -> None:
        """read: by any group."""
        partitions = {partition for partition, _ in read if partition in self._leaders}
        found = self._asked(routes, [(each, 0) for each in sorted(partitions)], deadline, timed=False)
        self._ends = {partition: log for (partition, _), log in found.items()}
        behind = {
            (partition, self._start(partition, position)): self._behind(partition, position)
            for partition, position in read
            if partition in self._ends
        }
        places = sorted((place for place in behind if behind[place]), key=lambda place: -behind[place])
        self._timed = self._asked(routes, places[:TIMED_MAX], deadline, timed=True)

    def seen(self, partition: TopicPartition, position: DescribedPosition | None) -> LogSeen | None:
        end = self._ends.get(partition)
        if end is None:
            return None
        timed = self._timed.get((partition, self._start(partition, position)))
        log = timed or end
        is_timed = timed is not None or not self._behind(partition, position)
        return LogSeen(log.topic_id, log.log_start, log.high_watermark, log.start_ms, is_timed)

    def _start(self, partition: TopicPartition, position: DescribedPosition | None) -> Offset:
        """A position in a topic that was made again counts for nothing."""
        if position is None or position.topic_id != self._ends[partition].topic_id:
            return 0
        return position.offset

    def _behind(self, partition: TopicPartition, position: DescribedPosition | None) -> int:
        end = self._ends[partition]
        return max(0, end.high_watermark - max(end.log_start, self._start(partition, position)))

    def _asked(
        self, routes: Routes, places: Iterable[Place], deadline: Deadline, *, timed: bool
    ) -> dict[Place, FoundRange]:
        by_leader: dict[str, list[Place]] = defaultdict(list)
        for partition, start in places:
            by_leader[self._leaders[partition]].append((partition, start))
        found: dict[Place, FoundRange] = {}
        for address, there in by_leader.items():
            for first in range(0, len(there), RANGES_A_CALL):
                part = there[first : first + RANGES_A_CALL]
                wanted = [
                    WantedRange(topic=name.topic, partition=name.partition, start=start, may_lag=True, timed=timed)
                    for name, start in part
                ]
                with suppress(ReplicationError):
                    told = ranges_at(routes, address, wanted, deadline)
                    found |= {place: log for place, log in zip(part, told, strict=True) if log.error == NONE}
        return found
