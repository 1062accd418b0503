"""A claim: what a process wants to be true of itself in ZooKeeper, whichever answers are lost on the way.

A claim reads the nodes that decide, and returns the one multi() that would make it true. Every write in that multi()
names the version that was read, so it may be sent again at any time. A refused write and a write whose answer was lost
are treated alike: the nodes are read again, and show whether it was stored.

| doing | event                     | then    | why                                               |
| ----- | ------------------------- | ------- | ------------------------------------------------- |
| READ  | Settled                   | end     | the claim is true already, or another's is        |
| READ  | Refused                   | end     | with the error of the refusal                     |
| READ  | Send                      | SEND    |                                                   |
| READ  | Send, after `sends_max`   | end     | RequestTimedOut: another process writes the nodes |
| SEND  | stored                    | end     | `claimed` is true                                 |
| SEND  | refused, or answer lost   | READ    | nobody knows what is there                        |
| both  | the session is over       | end     | the performer raises that error                   |

zk.claims and sim.world.claims perform claims. Both read the nodes in the order in which the claim names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from spark_replication.errors import CorruptState, ReplicationError, RequestTimedOut
from spark_replication.model import ABSENT, BrokerId

# A race is decided within one or two rounds; more rounds mean that something else writes these nodes.
RACES_MAX = 20

Value = TypeVar("Value")
Claimed = TypeVar("Claimed")


class Kind(Enum):
    CONTROLLER = "who commands"
    CONTROLLER_EPOCH = "its epoch"
    REGISTRATION = "a broker that lives"
    BROKER_EPOCH = "its last epoch"
    BROKER_SEQUENCE = "the next broker id"


class NodePlace(NamedTuple):
    """A node. Nodes of CONTROLLER and REGISTRATION are ephemeral: they go with the session that made them."""

    kind: Kind
    #: 0 for a node that is no broker's.
    broker: BrokerId = 0


class NodeAsRead(NamedTuple, Generic[Value]):
    """A node as read."""

    value: Value | CorruptState
    version: int
    #: The node goes with the session that read it.
    is_mine: bool = False

    def is_as_sent(self, sent: object) -> bool:
        return self.is_mine and self.value == sent


class NodeWrite(NamedTuple):
    """Writes the node, or makes it."""

    place: NodePlace
    value: Any
    #: The version as read. ABSENT: make the node.
    version: int = ABSENT


class Remove(NamedTuple):
    place: NodePlace
    version: int


class NodeCheck(NamedTuple):
    """Requires that the node is as it was read."""

    place: NodePlace
    version: int


Operation = NodeWrite | Remove | NodeCheck


class ClaimSend(NamedTuple, Generic[Claimed]):
    """Send this multi()."""

    operations: tuple[Operation, ...]
    #: What is true once the multi() is stored.
    claimed: Claimed


class ClaimSettled(NamedTuple, Generic[Claimed]):
    """Nothing is to be sent."""

    claimed: Claimed


class ClaimRefused(NamedTuple):
    error: ReplicationError


Nodes = Mapping[NodePlace, NodeAsRead[Any] | None]  # None: there is no such node


class Claim(Protocol[Claimed]):
    """str() of a claim is its name, for errors."""

    @property
    def sends_max(self) -> int: ...

    @property
    def reads(self) -> tuple[NodePlace, ...]: ...

    def decide(self, nodes: Nodes, sent: Claimed | None) -> ClaimSend[Claimed] | ClaimSettled[Claimed] | ClaimRefused:
        """Decide by the nodes as read. sent: what the last multi() would claim, which may be stored; None if nothing
        was sent."""
        ...


class Attempts(Generic[Claimed]):
    """Counts the attempts of one claim."""

    def __init__(self, claim: Claim[Claimed]) -> None:
        self.claim = claim
        self._sends = 0
        self._sent: Claimed | None = None

    def after_reading(self, nodes: Nodes) -> ClaimSend[Claimed] | ClaimSettled[Claimed] | ClaimRefused:
        decision = self.claim.decide(nodes, self._sent)
        if not isinstance(decision, ClaimSend):
            return decision
        if self._sends == self.claim.sends_max:
            return ClaimRefused(
                RequestTimedOut(
                    f"{self.claim} was refused, or its answer lost, {self._sends} times: check the network, and "
                    "whether another process claims the same"
                )
            )
        self._sends += 1
        self._sent = decision.claimed
        return decision
