"""What a process claims for itself in ZooKeeper, whichever answers are lost on the way.

A claim reads the nodes that decide, and names the one multi() that would make it true. Every write in it names the
version that was read, so it may be sent again at any time. A write that was refused and a write whose answer was lost
are the same to it: what is there is read again, and shows what was sent or does not.

| doing | event                     | then    | why                                               |
| ----- | ------------------------- | ------- | ------------------------------------------------- |
| READ  | Settled                   | end     | it is true already, or another's                  |
| READ  | Refused                   | end     | by its error                                      |
| READ  | Send                      | SEND    |                                                   |
| READ  | Send, after `sends_max`   | end     | RequestTimedOut: somebody writes these nodes      |
| SEND  | stored                    | end     | `claimed` is true                                 |
| SEND  | refused, or answer lost   | READ    | nobody knows what is there                        |
| both  | the session is over       | end     | by that error, which is for who performs to raise |

zk.claims and sim.world.claims perform it. Both read the nodes in the order in which the claim names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from spark_replication.errors import CorruptState, ReplicationError, RequestTimedOut
from spark_replication.model import ABSENT, BrokerId

# A race is lost within one or two rounds; more means that something else writes these nodes.
RACES_MAX = 20

Value = TypeVar("Value")
Claimed = TypeVar("Claimed")


class Kind(Enum):
    CONTROLLER = "who commands"
    CONTROLLER_EPOCH = "its epoch"
    REGISTRATION = "a broker that lives"
    BROKER_EPOCH = "its last epoch"
    BROKER_SEQUENCE = "the next broker id"


class Place(NamedTuple):
    """A node. Those of CONTROLLER and REGISTRATION go with the session that made them. broker: 0, if it is none's."""

    kind: Kind
    broker: BrokerId = 0


class Seen(NamedTuple, Generic[Value]):
    """A node as read. is_mine: it goes with the session that read it."""

    value: Value | CorruptState
    version: int
    is_mine: bool = False

    def is_as_sent(self, sent: object) -> bool:
        return self.is_mine and self.value == sent


class Put(NamedTuple):
    """version: as read. ABSENT: it makes the node."""

    place: Place
    value: Any
    version: int = ABSENT


class Remove(NamedTuple):
    place: Place
    version: int


class Check(NamedTuple):
    """The node stays as it was read."""

    place: Place
    version: int


Operation = Put | Remove | Check


class Send(NamedTuple, Generic[Claimed]):
    """claimed: what is true once this multi() is stored."""

    operations: tuple[Operation, ...]
    claimed: Claimed


class Settled(NamedTuple, Generic[Claimed]):
    claimed: Claimed


class Refused(NamedTuple):
    error: ReplicationError


Nodes = Mapping[Place, Seen[Any] | None]  # None: there is no such node


class Claim(Protocol[Claimed]):
    """One that can be printed: its name."""

    @property
    def sends_max(self) -> int: ...

    @property
    def reads(self) -> tuple[Place, ...]: ...

    def decide(self, nodes: Nodes, sent: Claimed | None) -> Send[Claimed] | Settled[Claimed] | Refused:
        """sent: what the last multi() would have claimed, which may be stored; None: nothing was sent."""
        ...


class Attempts(Generic[Claimed]):
    """Of one claim."""

    def __init__(self, claim: Claim[Claimed]) -> None:
        self.claim = claim
        self._sends = 0
        self._sent: Claimed | None = None

    def after_reading(self, nodes: Nodes) -> Send[Claimed] | Settled[Claimed] | Refused:
        decision = self.claim.decide(nodes, self._sent)
        if not isinstance(decision, Send):
            return decision
        if self._sends == self.claim.sends_max:
            return Refused(
                RequestTimedOut(
                    f"{self.claim} was refused, or its answer lost, {self._sends} times: check the network, and "
                    "whether another process claims the same"
                )
            )
        self._sends += 1
        self._sent = decision.claimed
        return decision
