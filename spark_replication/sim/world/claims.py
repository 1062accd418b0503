"""Performs a claim (core.claims) in a simulated session, whose requests take time. zk.claims says what they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from spark_replication.core.claims.claim import (
    Attempts,
    Claim,
    ClaimRefused,
    ClaimSend,
    ClaimSettled,
    NodeAsRead,
    NodePlace,
)
from spark_replication.errors import ReplicationError, RequestTimedOut
from spark_replication.sim.world.zookeeper import RETRY_MS, Lost, Session
from spark_replication.zk.claims import is_stored, operation_of, path_of, seen
from spark_replication.zk.operations import Committed, Node, Rejected

TIMED_OUT_PROBABILITY = 0.5

Claimed = TypeVar("Claimed")


def perform(
    session: Session, what: str, wanted: Claim[Claimed], ended: Callable[[Claimed | ReplicationError], None]
) -> None:
    """Perform a claim, and call `ended` with what came of it. `what` names its multi(), whose answer may be lost."""
    _Performing(session, what, wanted, ended).read()


class _Performing(Generic[Claimed]):
    def __init__(
        self, session: Session, what: str, wanted: Claim[Claimed], ended: Callable[[Claimed | ReplicationError], None]
    ) -> None:
        self._session = session
        self._what = what
        self._reads = wanted.reads
        self._attempts = Attempts(wanted)
        self._ended = ended
        self._nodes: dict[NodePlace, NodeAsRead[Any] | None] = {}

    def read(self) -> None:
        """Read the nodes one after the other: others may write in between."""
        session, place = self._session, self._reads[len(self._nodes)]

        def found(answer: Node | Lost | None) -> None:
            if isinstance(answer, Lost):
                self._lost(answer)
                return
            self._nodes[place] = seen(answer, place, session.id)
            if len(self._nodes) < len(self._reads):
                self.read()
            else:
                self._decide()

        read = partial(session.zookeeper.tree.read, path_of(place))
        session.request(f"{self._what}: reads", read, found, place.kind.value)

    def _decide(self) -> None:
        decision = self._attempts.after_reading(self._nodes)
        self._nodes.clear()
        if isinstance(decision, ClaimRefused):
            self._ended(decision.error)
        elif isinstance(decision, ClaimSettled):
            self._ended(decision.claimed)
        else:
            self._send(decision)

    def _send(self, send: ClaimSend[Claimed]) -> None:
        session, operations = self._session, tuple(map(operation_of, send.operations))

        def answered(answer: Committed | Rejected | Lost) -> None:
            if isinstance(answer, Lost):
                self._lost(answer)
            elif is_stored(answer, operations):
                self._ended(send.claimed)
            else:
                self.read()

        session.request(self._what, lambda: session.zookeeper.multi(operations, session), answered)

    def _lost(self, answer: Lost) -> None:
        if answer.expired:
            self._ended(answer.error)
            return
        world = self._session.zookeeper.world
        if world.chance(TIMED_OUT_PROBABILITY):
            self._ended(RequestTimedOut("ZooKeeper did not answer in time"))
            return
        world.after(world.between(*RETRY_MS), f"{self._what}: reads again", self.read, on=self._session.process)
