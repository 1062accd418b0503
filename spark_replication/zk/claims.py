"""Performs a claim (core.claims) in a session: reads its nodes, sends its multi(), and decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeVar, assert_never

from spark_replication.core.claims import claim
from spark_replication.core.claims.claim import (
    Attempts,
    Claim,
    ClaimRefused,
    ClaimSettled,
    Kind,
    NodeAsRead,
    NodePlace,
    NodeWrite,
    Remove,
)
from spark_replication.errors import CorruptState, NotReady, ReplicationError
from spark_replication.model import (
    ABSENT,
    BrokerEpoch,
    BrokerSequence,
    ControllerEpoch,
    ControllerInfo,
    Registration,
    Value,
    decode,
    encode,
)
from spark_replication.zk import paths
from spark_replication.zk.operations import (
    Check,
    Committed,
    Create,
    Delete,
    Node,
    Operation,
    Rejected,
    RejectionReason,
    SetData,
)
from spark_replication.zk.session import ConnectionLost, Session

EPHEMERAL = frozenset({Kind.CONTROLLER, Kind.REGISTRATION})
CONTENTS: dict[Kind, type[Value]] = {
    Kind.CONTROLLER: ControllerInfo,
    Kind.CONTROLLER_EPOCH: ControllerEpoch,
    Kind.REGISTRATION: Registration,
    Kind.BROKER_EPOCH: BrokerEpoch,
    Kind.BROKER_SEQUENCE: BrokerSequence,
}

Claimed = TypeVar("Claimed")
log = logging.getLogger(__name__)


def perform(session: Session, wanted: Claim[Claimed]) -> Claimed:
    """Wait for ZooKeeper until the claim is settled. Raises the error that refuses the claim, or ends the session."""
    attempts = Attempts(wanted)
    while True:
        nodes = {place: seen(session.read_now(path_of(place)), place, session.id) for place in wanted.reads}
        decision = attempts.after_reading(nodes)
        if isinstance(decision, ClaimRefused):
            raise decision.error
        claimed: Claimed = decision.claimed
        if isinstance(decision, ClaimSettled):
            return claimed
        operations = tuple(map(operation_of, decision.operations))
        try:
            if is_stored(session.commit_now(operations), operations):
                return claimed
        except ConnectionLost as error:
            log.info("%s", error)


def seen(node: Node | None, place: NodePlace, session: int) -> NodeAsRead[Value] | None:
    """What a claim sees of a node that this session has read."""
    if node is None:
        return None
    try:
        value: Value | CorruptState = decode(node.data, CONTENTS[place.kind], path_of(place))
    except CorruptState as error:
        log.error("%s", error)
        value = error
    return NodeAsRead(value, node.version, is_mine=node.owner == session)


def is_stored(outcome: Committed | Rejected, operations: Sequence[Operation]) -> bool:
    """Whether a claim's multi() was stored. Raises if it never can be."""
    if isinstance(outcome, Committed):
        return True
    operation = operations[outcome.operation]
    if outcome.reason is RejectionReason.NO_NODE and isinstance(operation, Create):
        raise NotReady(f"{operation.path} has no parent in ZooKeeper: no controller has run yet, start one")
    if outcome.reason is RejectionReason.OTHER:
        raise ReplicationError(f"{operation.path} cannot be written: {outcome.reason.value}")
    return False


def operation_of(wanted: claim.Operation) -> Operation:
    path = path_of(wanted.place)
    match wanted:
        case NodeWrite(version=version, value=value):
            if version == ABSENT:
                return Create(path, encode(value), ephemeral=wanted.place.kind in EPHEMERAL)
            return SetData(path, encode(value), version)
        case Remove(version=version):
            return Delete(path, version)
        case claim.NodeCheck(version=version):
            return Check(path, version)


def path_of(place: NodePlace) -> str:
    match place.kind:
        case Kind.CONTROLLER:
            return paths.CONTROLLER
        case Kind.CONTROLLER_EPOCH:
            return paths.CONTROLLER_EPOCH
        case Kind.REGISTRATION:
            return paths.broker_id(place.broker)
        case Kind.BROKER_EPOCH:
            return paths.broker_epoch(place.broker)
        case Kind.BROKER_SEQUENCE:
            return paths.BROKER_SEQUENCE
        case _:
            assert_never(place.kind)
