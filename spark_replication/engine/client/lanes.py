"""Lanes to leaders: all partitions that a producer writes to at one broker share a connection to it.

A lane is a partition's place on the connection. Lanes are asked for batches in turn, and each gets its answers in the
order of its batches, whatever order they came in. An owner ignores the answers of a lane that it has left.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from spark_replication.core.routing import Route
from spark_replication.errors import InvalidRequest, ReplicationError
from spark_replication.messages.lane import STREAMS_MAX, PutAnswer, StreamFrame
from spark_replication.messages.records import BatchMetadata

AT_ONCE = 0.0  # for Lane.ask_at


class Outgoing(NamedTuple):
    #: Sent as one batch.
    sends: list[Any]
    metadata: BatchMetadata


class Owner(Protocol):
    """Whoever sends over a lane."""

    def next_batch(self, lane: Lane) -> Outgoing | None:
        """The batch to send now: the time that the owner gave to `ask_at` has come. None if there is none to send."""

    def answered(self, lane: Lane, answers: list[PutAnswer]) -> None:
        """Take one answer a batch, in the order of the batches."""

    def ended(self, lane: Lane, error: ReplicationError) -> None:
        """The connection has ended, for this reason. This is the last call for a lane. It is not made for a lane that
        was left before."""


class LaneLink(Protocol):
    """A connection to a leader, made or not."""

    @property
    def heard_s(self) -> float:
        """When anything was last received, for any lane."""

    def waits_for(self, now_s: float) -> str:
        """What the leader said that it waits for, if it still does."""

    def ask_at(self, at_s: float, lane: Lane) -> None: ...
    def leave(self, lane: Lane) -> None: ...

    def abandon(self, why: str) -> None:
        """Give up the whole connection, for all of its lanes."""


class Lane:
    """The place of one partition on a connection, in one producer epoch."""

    def __init__(self, link: LaneLink, route: Route, kind: Any, epoch: int, owner: Owner) -> None:
        """kind: what all batches on it have in common, as Send.kind."""
        self.link = link
        self.route = route
        self.kind = kind
        self.epoch = epoch
        self.owner = owner
        #: When the owner is asked for a batch next. The owner guards it.
        self.asked_at_s = math.inf
        #: The numbers of the batches whose answers were not handed on yet, in order.
        self._owed: deque[int] = deque()
        #: Answers, by number, that came before the answer to an earlier batch.
        self._early: dict[int, PutAnswer] = {}

    def ask_at(self, at_s: float) -> None:
        """Have the owner asked for a batch at this time, unless it is asked sooner. Each asking needs another call."""
        if at_s < self.asked_at_s:
            self.asked_at_s = at_s
            self.link.ask_at(at_s, self)

    def leave(self) -> None:
        self.link.leave(self)

    def sends(self, number: int) -> None:
        self._owed.append(number)

    def in_order(self, answer: PutAnswer) -> list[PutAnswer]:
        """Take an answer, and return the answers that are next in order."""
        self._early[answer.number] = answer
        found = []
        while self._owed and (first := self._early.pop(self._owed[0], None)) is not None:
            self._owed.popleft()
            found.append(first)
        return found


class LeaderStreams:
    """What is sent on one connection, after its handshake: its streams, and the batches that it owes answers to."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, Any], int] = {}
        self._number = 0
        self._owing: dict[int, Lane] = {}  # the lane of each unanswered batch, by number

    def stream(self, lane: Lane) -> tuple[int, StreamFrame | None] | None:
        """The stream of the lane's topic and kind, and what opens it, if it is new. None: there are too many."""
        key = (lane.route.topic_id, lane.kind)
        stream = self._streams.get(key)
        if stream is not None:
            return stream, None
        if len(self._streams) == STREAMS_MAX:
            return None
        stream = self._streams[key] = len(self._streams)
        return stream, StreamFrame(stream=stream, topic=lane.route.topic, topic_id=lane.route.topic_id)

    def sends(self, lane: Lane) -> int:
        """The number of the lane's next batch, which is sent now."""
        number = self._number
        self._number += 1
        self._owing[number] = lane
        lane.sends(number)
        return number

    def answered(self, answers: Sequence[PutAnswer]) -> Iterator[tuple[Lane, list[PutAnswer]]]:
        """What each lane is to be told of these answers. InvalidRequest: one of them is not owed."""
        ready: dict[Lane, list[PutAnswer]] = {}
        for answer in answers:
            lane = self._owing.pop(answer.number, None)
            if lane is None:
                raise InvalidRequest(f"the broker answered batch {answer.number}, which is not owed")
            ready.setdefault(lane, []).extend(lane.in_order(answer))
        return ((lane, found) for lane, found in ready.items() if found)
