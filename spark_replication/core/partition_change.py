"""The one place that makes a new PartitionState from an old one: ISR, ELR, leader and their epochs change together.

with_isr is used by leaders (for their own ISR changes) and by the controller: both keep rule I7 by the same code.

| what happens             | ISR             | ELR, last_known_elr                          | leader_epoch |
| ------------------------ | --------------- | -------------------------------------------- | ------------ |
| members leave, ISR ≥ min | without them    | cleared                                      | same         |
| members leave, ISR < min | without them    | + the leavers; the void ones to last_known   | same         |
| a member is void         | without it      | out of the ELR, into last_known              | same         |
| a follower joins         | + it            | − it; cleared once ISR ≥ min                 | same         |
| the leader goes, another | as above        | as above                                     | + 1          |
| the leader goes, none    | may be empty    | as above; last_known_leader = the old leader | + 1          |
| elected from the ELR     | + it            | − it; last_known_leader cleared              | + 1          |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from spark_replication.config import RecoveryStrategy
from spark_replication.core.cluster import Brokers
from spark_replication.core.election import Elected, Waiting, elect
from spark_replication.model import BrokerId, PartitionState

NOBODY: frozenset[BrokerId] = frozenset()


class Settled(msgspec.Struct, frozen=True):
    """What a partition becomes: `state`, and what led there: an election, a wait, or neither."""

    state: PartitionState
    outcome: Elected | Waiting | None


def with_isr(
    before: PartitionState,
    isr: frozenset[BrokerId],
    *,
    joined: Mapping[BrokerId, int],
    void: frozenset[BrokerId] = NOBODY,
) -> PartitionState:
    """The state with this ISR (I7). `joined`: the broker epochs of those that were not in the ISR before; a member of
    the ELR that none is given for keeps its own.

    void: members that lost what they had; they are not in `isr`, and are no candidates for leadership either.
    """
    if len(isr) >= before.min_isr:
        elr = last_known_elr = NOBODY
    else:
        leaving = before.members - isr
        elr = leaving - void
        last_known_elr = (before.last_known_elr | (leaving & void)) - isr - elr
    # Who joins again does so at the epoch of its fetches: under the one from before its restart it would stay void.
    known = before.epochs | {member: joined[member] for member in isr - before.isr if member in joined}
    epochs = {member: known[member] for member in sorted(isr | elr)}
    leader = before.leader if before.leader in isr else None
    return replace(before, isr=isr, elr=elr, last_known_elr=last_known_elr, epochs=epochs, leader=leader)


def settled(
    replicas: Sequence[BrokerId], before: PartitionState, brokers: Brokers, strategy: RecoveryStrategy
) -> Settled:
    """What the state calls for now: the dead and the void leave the ISR, and a partition without leader gets one.

    Idempotent: of its own result it changes nothing. So a controller that crashed half-way is followed by one that ends
    in the same place (C4), and a lost condition is answered by reading again and settling again.
    """
    void = brokers.void(before.epochs)
    staying = (before.isr & brokers.live) - void
    after = with_isr(before, staying, joined={}, void=void) if staying != before.isr or void else before
    if after.leader is not None:
        return Settled(after, None)
    outcome = elect(replicas, after, brokers.electable, strategy)
    if isinstance(outcome, Elected):
        return Settled(_led_by(after, before, outcome.leader), outcome)
    if before.leader is None:
        return Settled(after, outcome)
    return Settled(replace(after, leader_epoch=before.leader_epoch + 1, last_known_leader=before.leader), outcome)


def _led_by(after: PartitionState, before: PartitionState, leader: BrokerId) -> PartitionState:
    isr = after.isr | {leader}
    with_leader = after if isr == after.isr else with_isr(after, isr, joined={})
    return replace(with_leader, leader=leader, leader_epoch=before.leader_epoch + 1, last_known_leader=None)


def created(
    replicas: Sequence[BrokerId], brokers: Brokers, *, min_insync_replicas: int, controller_epoch: int
) -> PartitionState | None:
    """A new partition: led by its first live replica, every live one in sync, both epochs 0. None: no replica lives."""
    live = [replica for replica in replicas if replica in brokers.electable]
    if not live:
        return None
    return PartitionState(
        leader=live[0],
        leader_epoch=0,
        isr=frozenset(live),
        min_isr=effective_min_isr(min_insync_replicas, replicas),
        epochs={replica: brokers.epochs[replica] for replica in sorted(live)},
        controller_epoch=controller_epoch,
    )


def effective_min_isr(min_insync_replicas: int, replicas: Sequence[BrokerId]) -> int:
    """More in-sync replicas than replicas cannot be asked for (I5)."""
    return min(min_insync_replicas, len(replicas))
