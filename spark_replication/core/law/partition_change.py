"""The one place that makes a new PartitionState from an old one: ISR, ELR, leader and their epochs change together.

with_isr is used by leaders (for their own ISR changes) and by the controller: both keep rule I7 by the same code.

| what happens               | ISR             | ELR, last_known_elr                          | leader_epoch |
| -------------------------- | --------------- | -------------------------------------------- | ------------ |
| members leave, ISR ≥ min   | without them    | cleared                                      | same         |
| members leave, ISR < min   | without them    | + the leavers; the void ones to last_known   | same         |
| a member is void           | without it      | out of the ELR, into last_known              | same         |
| a follower joins           | + it            | − it; cleared once ISR ≥ min                 | same         |
| min_isr changes            | same            | cleared if ISR ≥ min                         | same         |
| a follower shuts down      | without it      | as if it had left                            | same         |
| the leader shuts down      | without it, if another of ISR or ELR can lead; else it leads on | + 1 / same   |
| the leader goes, another   | as above        | as above                                     | + 1          |
| the leader goes, none      | may be empty    | as above; last_known_leader = the old leader | + 1          |
| elected from the ELR       | + it            | − it; last_known_leader cleared              | + 1          |
| elected from outside       | only it         | cleared; recovering, loss, start_at are set  | + 1          |
| a person acknowledges loss | same            | same; loss is cleared                        | same         |
| replicas are added         | same            | same; of what somebody removed: + all of them | same        |
| replicas are dropped       | within the rest | within the rest                              | + 1          |
| made, or made again        | the live ones   | empty                                        | 0 / + 1      |
| made of a table (TB7)      | the live ones   | empty; start_at is set                       | the table's + 1 |
| removed by somebody        | empty           | empty; last_known_elr = all replicas         | known + 1, 0 |
| a log has a later epoch    | empty           | empty; last_known_elr = all replicas         | above it     |
| likewise, chosen uncleanly | same            | same                                         | above it     |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from spark_replication.core.law.brokers import Brokers
from spark_replication.core.law.election import NOBODY, Elected, Policy, Waiting, elect, is_restored, within
from spark_replication.core.tables.sealing import Sealing
from spark_replication.model import UNCLEAN, BrokerId, Epoch, Offset, PartitionState, PossibleLoss

#: So many elections lie at most between the epochs that logs report and one that nobody has reported, since it is on a
#: broker that is down: two leaders of one epoch would make logs part unseen (Z2).
UNREPORTED_MAX = 1 << 12


class Settled(msgspec.Struct, frozen=True):
    """What a partition becomes."""

    state: PartitionState
    #: What led to the state: an election, a wait, or neither.
    outcome: Elected | Waiting | None


def with_isr(
    before: PartitionState,
    isr: frozenset[BrokerId],
    *,
    joined: Mapping[BrokerId, int],
    void: frozenset[BrokerId] = NOBODY,
) -> PartitionState:
    """The state with this ISR (I7).

    `joined` has the broker epochs of those that join the ISR. A member of the ELR that is not in it keeps its epoch.
    `void` are members that lost what they had: they are not in `isr`, and are no candidates for leadership either.
    """
    if len(isr) >= before.min_isr:
        elr = last_known_elr = NOBODY
    else:
        leaving = before.members - isr
        elr = leaving - void
        last_known_elr = (before.last_known_elr | void) - isr - elr
    # A member joins again at the epoch of its fetches: under the one from before its restart it would stay void.
    known = before.epochs | {member: joined[member] for member in isr - before.isr if member in joined}
    epochs = {member: known[member] for member in sorted(isr | elr)}
    leader = before.leader if before.leader in isr else None
    return replace(before, isr=isr, elr=elr, last_known_elr=last_known_elr, epochs=epochs, leader=leader)


def without_void(before: PartitionState, brokers: Brokers) -> PartitionState:
    """The state without the members that have registered uncleanly since they joined (I8)."""
    void = brokers.void(before.epochs)
    return with_isr(before, before.isr - void, joined={}, void=void) if void else before


def with_min_isr(before: PartitionState, min_isr: int) -> PartitionState:
    """The state with this effective min ISR. An ISR that reaches it needs no ELR (I5, I7)."""
    if min_isr == before.min_isr:
        return before
    return with_isr(replace(before, min_isr=min_isr), before.isr, joined={})


def settled(
    replicas: Sequence[BrokerId],
    before: PartitionState,
    brokers: Brokers,
    policy: Policy,
    *,
    min_isr: int,
    now_ms: int,
    sealing: Sealing,
) -> Settled:
    """Settle a partition: members that are dead, void or shutting down leave the ISR, and a leaderless partition gets a
    leader, or waits.

    Idempotent: it changes nothing of its own result. So the successor of a controller that crashed half-way ends in the
    same place (C4), and after a lost condition one reads again and settles again.
    """
    void = brokers.void(before.epochs)
    state = with_min_isr(before, min_isr)
    staying = (state.isr & brokers.electable) - void
    after = with_isr(state, staying, joined={}, void=void) if staying != state.isr or void else state
    if after.leader is not None:
        return Settled(after, None)
    leader = before.leader
    if leader is not None and leader in brokers.live and leader not in void:
        staying |= {leader}
        moved = _moved_away(replicas, before, after, staying, brokers, void, now_ms=now_ms, sealing=sealing)
        return Settled(moved, None)
    # Set last_known_leader before electing: otherwise this pass could wait and the next pass elect, and settled()
    # would not be idempotent.
    led = after if leader is None else replace(after, last_known_leader=leader)
    outcome = elect(replicas, led, brokers.electable, policy)
    if isinstance(outcome, Elected) and waits_for_table(led, before.leader_epoch, outcome, sealing):
        outcome = Waiting("table")
    if isinstance(outcome, Elected):
        return Settled(elected(led, before.leader_epoch, outcome, brokers, sealing, now_ms=now_ms), outcome)
    return Settled(led if leader is None else replace(led, leader_epoch=before.leader_epoch + 1), outcome)


def _moved_away(
    replicas: Sequence[BrokerId],
    before: PartitionState,
    after: PartitionState,
    staying: frozenset[BrokerId],
    brokers: Brokers,
    void: frozenset[BrokerId],
    *,
    now_ms: int,
    sealing: Sealing,
) -> PartitionState:
    """The state when the leader is shutting down: another member that holds everything leads, else it leads on (L2)."""
    outcome = within(replicas, after, brokers.electable)
    if outcome is not None:
        return elected(after, before.leader_epoch, outcome, brokers, sealing, now_ms=now_ms)
    state = with_min_isr(before, after.min_isr)
    return with_isr(state, staying, joined={}, void=void) if staying != state.isr or void else state


def waits_for_table(state: PartitionState, leader_epoch: int, outcome: Elected, sealing: Sealing) -> bool:
    """Whether the leader that may be elected, one epoch above `leader_epoch`, comes from outside ISR and ELR, and the
    table must be sealed before that (TB5)."""
    return outcome.leader not in state.members and sealing.is_needed(leader_epoch + 1)


def elected(
    state: PartitionState, leader_epoch: int, outcome: Elected, brokers: Brokers, sealing: Sealing, *, now_ms: int
) -> PartitionState:
    """The state that the elected leader leads, one epoch above `leader_epoch`. It does not wait for the table.

    A leader from outside ISR and ELR is alone in the ISR, since nobody else is known to hold what it holds, and
    `recovering` is set (L4). Its log begins where the table ends, or above that (TB5). The election is added to `loss`,
    which stays until a person acknowledges it (D2).
    """
    leader = outcome.leader
    if leader not in state.members:
        start_at = sealing.start_at(leader_epoch + 1)
        state = replace(
            state,
            isr=frozenset({leader}),
            elr=NOBODY,
            last_known_elr=NOBODY,
            epochs={leader: brokers.epochs[leader]},
            recovering=True,
            loss=_with_loss(state.loss, leader_epoch + 1, _with_table(outcome, start_at), now_ms),
            start_at=_raised(state.start_at, start_at),
        )
    elif leader not in state.isr:
        state = with_isr(state, state.isr | {leader}, joined={})
    return replace(state, leader=leader, leader_epoch=leader_epoch + 1, last_known_leader=None, elected=outcome.how)


def _with_table(outcome: Elected, start_at: Offset) -> Elected:
    """What the table has is not lost, whatever the leader lacks."""
    return replace(outcome, complete_below=max(outcome.complete_below or 0, start_at)) if start_at else outcome


def _raised(start_at: Offset | msgspec.UnsetType, to: Offset) -> Offset | msgspec.UnsetType:
    known = 0 if isinstance(start_at, msgspec.UnsetType) else start_at
    return max(known, to) or msgspec.UNSET


def _with_loss(
    known: PossibleLoss | msgspec.UnsetType, leader_epoch: int, outcome: Elected, now_ms: int
) -> PossibleLoss:
    """What is known of possible loss once this election from outside is added. What one of the elections leaves
    unknown is unknown of all of them."""
    if isinstance(known, msgspec.UnsetType):
        return PossibleLoss(
            since_ms=now_ms,
            first_epoch=leader_epoch,
            last_epoch=leader_epoch,
            from_offset=outcome.complete_below,
            records_max=outcome.lacks_max,
        )
    ends, lacking = (known.from_offset, outcome.complete_below), (known.records_max, outcome.lacks_max)
    return replace(
        known,
        last_epoch=leader_epoch,
        from_offset=None if None in ends else min(end for end in ends if end is not None),
        records_max=None if None in lacking else sum(count for count in lacking if count is not None),
    )


def acknowledged(before: PartitionState) -> PartitionState:
    """The state once a person has acknowledged its possible loss."""
    return replace(before, loss=msgspec.UNSET)


def narrowed(
    before: PartitionState, replicas: Sequence[BrokerId], leader: BrokerId, *, drops: bool, min_isr: int
) -> PartitionState:
    """The state within these replicas, led by `leader`. With `drops` the assignment had others: to drop them is one
    decision, whoever leads then (E1)."""
    kept = frozenset(replicas)
    isr = before.isr & kept
    elr, last_known_elr = before.elr & kept, before.last_known_elr & kept
    if len(isr) >= min_isr:
        elr = last_known_elr = NOBODY
    return replace(
        before,
        leader=leader,
        leader_epoch=before.leader_epoch + (drops or leader != before.leader),
        isr=isr,
        elr=elr,
        last_known_elr=last_known_elr,
        epochs={member: before.epochs[member] for member in sorted(isr | elr)},
        min_isr=min_isr,
        elected=before.elected if leader == before.leader else "isr",
    )


def overtaken(
    replicas: Sequence[BrokerId], before: PartitionState, last_epoch: int, holder: BrokerId
) -> PartitionState:
    """The state once `holder` has shown a log with a later leader epoch: ZooKeeper is as of an earlier time (Z2).

    Its ISR and ELR are of that time, too, and prove nothing: any replica may hold what was acknowledged since. A leader
    that was chosen from outside stays. Whoever chose it knew that later records give way.
    """
    if before.leader is not None and before.elected in UNCLEAN:
        return replace(before, leader_epoch=last_epoch + UNREPORTED_MAX)
    return replace(
        before,
        leader=None,
        leader_epoch=last_epoch + UNREPORTED_MAX,
        isr=NOBODY,
        elr=NOBODY,
        epochs={},
        last_known_elr=frozenset(replicas),
        last_known_leader=holder,
    )


def restored(replicas: Sequence[BrokerId], *, leader_epoch: int, min_isr: int, controller_epoch: int) -> PartitionState:
    """A partition whose leaderAndISR somebody has removed: it may have records, and any replica may hold the last ones,
    so logs decide who leads (Z2). If `leader_epoch` is not above those of the logs, `overtaken` follows."""
    return PartitionState(
        leader=None,
        leader_epoch=leader_epoch,
        isr=NOBODY,
        min_isr=min_isr,
        last_known_elr=frozenset(replicas),
        controller_epoch=controller_epoch,
    )


def with_replicas(before: PartitionState, known: Sequence[BrokerId], replicas: Sequence[BrokerId]) -> PartitionState:
    """The state once `replicas` are those of the partition, `known` before. One that somebody had removed stays so,
    until logs have decided: else it would wait for a last leader whom nobody knows."""
    return replace(before, last_known_elr=frozenset(replicas)) if is_restored(known, before) else before


def created(
    replicas: Sequence[BrokerId],
    brokers: Brokers,
    *,
    min_insync_replicas: int,
    controller_epoch: int,
    tombstone: PartitionState | None,
    sealing: Sealing,
) -> PartitionState | None:
    """A new partition, led by its first live replica and with every live one in sync. None if no replica lives.

    Both epochs are 0, or go on from the tombstone of the removed partition (E4). So do the offsets that its table has:
    it does not wait for that to be sealed (TB5). In a topic that is restored they go on from the table (TB7).
    """
    live = [replica for replica in replicas if replica in brokers.electable]
    if not live:
        return None
    epoch = first_epoch(tombstone, sealing)
    known = msgspec.UNSET if tombstone is None else tombstone.start_at
    goes_on = sealing.is_restored or tombstone is not None
    return PartitionState(
        leader=live[0],
        leader_epoch=epoch,
        created=epoch,
        start_at=_raised(known, sealing.start_at(epoch)) if goes_on else msgspec.UNSET,
        isr=frozenset(live),
        min_isr=effective_min_isr(min_insync_replicas, len(replicas)),
        epochs={replica: brokers.epochs[replica] for replica in sorted(live)},
        controller_epoch=controller_epoch,
    )


def first_epoch(tombstone: PartitionState | None, sealing: Sealing) -> Epoch:
    """The leader epoch at which a partition is made, or made again."""
    return sealing.first_epoch if tombstone is None else tombstone.leader_epoch + 1


def effective_min_isr(min_insync_replicas: int, replication_factor: int) -> int:
    """The min ISR in effect: no more in-sync replicas can be required than there are replicas (I5)."""
    return min(min_insync_replicas, replication_factor)
