"""The origin of a decision, in words: a broker's death, a request and who asked, a take-over (`events`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import assert_never

import msgspec

from spark_replication.core.controller.events import (
    BrokerDeathReported,
    BrokersRead,
    Event,
    LogInfoRead,
    LogsAhead,
    NodesUnreadable,
    PartitionsRead,
    ReplicasDamaged,
    ReplicasFailed,
    Requested,
    TableAnswered,
    Ticked,
    TookOver,
)
from spark_replication.core.controller.plan import BrokersMoved, Cause
from spark_replication.messages.requests import (
    AcknowledgeLoss,
    AddPartitions,
    CancelReassignment,
    ChangeAcls,
    Configure,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    Reassign,
    RemovePartitions,
    Request,
    SetQuota,
    WidenTopic,
)

NAMED_MAX = 5
WORDS_MAX = 300


class Origin(msgspec.Struct, frozen=True):
    #: The controller's epoch, and a number; unique in this cluster only.
    id: str
    kind: str
    words: str
    #: Whether somebody did, or said, something that is in no node of ZooKeeper.
    is_fact: bool = False


def origin_of(name: str, event: Event | Cause, cause: Cause | None) -> Origin:
    """The origin that an event is. `cause` is what the event was absorbed as; None if it was known already."""
    is_fact = False
    match event:
        case TookOver():
            kind, words, is_fact = "take_over", "a controller took over", True
        case Requested(asked=asked, asked_by=asked_by, path=path):
            words = f"{in_words(asked)}: asked by {asked_by or path or 'the controller'}"
            kind, is_fact = "request", True
        case BrokerDeathReported(broker=broker):
            kind, words, is_fact = "report", f"the process of broker {broker} was seen to end", True
        case ReplicasFailed() | ReplicasDamaged() | LogsAhead() | TableAnswered():
            kind, words, is_fact = _of_storage(event)
        case BrokersRead():
            kind, words = "brokers", _moved(cause) if isinstance(cause, BrokersMoved) else "brokers were read"
        case PartitionsRead():
            kind, words = "isr", "leaders changed their ISR"
        case NodesUnreadable(folder=folder):
            kind, words = "unreadable", f"{folder} was read"
        case LogInfoRead(broker=broker):
            kind, words = "logs", f"broker {broker} told of its logs"
        case Ticked():
            kind, words = "time", "the controller looked for what was due"
        case _:  # BrokerNoted, too, from which nothing follows
            kind, words = "again", "the controller went on with what it had begun"
    return Origin(name, kind, words, is_fact=is_fact)


def _of_storage(event: ReplicasFailed | ReplicasDamaged | LogsAhead | TableAnswered) -> tuple[str, str, bool]:
    match event:
        case ReplicasFailed(broker=broker, replicas=replicas):
            words = f"the disk of broker {broker} cannot keep {_some(str(each.partition) for each in replicas)}"
            return "disk", words, True
        case ReplicasDamaged(broker=broker, replicas=replicas):
            words = f"broker {broker} told of its disk, and {_some(str(each.partition) for each in replicas)}"
            return "damage", words, False
        case LogsAhead(broker=broker, last_epochs=last_epochs):
            ahead = (f"{each.partition} (epoch {last})" for each, last in last_epochs.items())
            words = f"broker {broker} has logs from after the time that ZooKeeper is as of: {_some(ahead)}"
            return "ahead", words, True
        case TableAnswered(topic=topic, told=told, why=why):
            said = f"was sealed for partitions {_some(map(str, told))}" if told else f"could not be sealed: {why}"
            return "table", f"the table of {topic} {said}", True
        case _:
            assert_never(event)


def in_words(asked: Request) -> str:
    match asked:
        case CreateTopic(name=name):
            words = f"create topic {name}"
        case DeleteTopic(topic=topic):
            words = f"delete topic {topic}"
        case AddPartitions(counts=counts, assignments=assignments):
            words = f"add partitions to {_some([*counts, *assignments])}"
        case RemovePartitions(partitions=partitions):
            named = (f"{topic}-{number}" for topic, numbers in partitions.items() for number in numbers)
            words = f"remove partitions {_some(named)}"
        case Reassign() | CancelReassignment() | ElectLeaders() | AcknowledgeLoss():
            words = _of_partitions(asked)
        case Configure(topic=configured, settings=settings):
            changed = (f"{name} {'by default' if value is None else value}" for name, value in settings.items())
            words = f"configure {'the cluster' if configured is None else f'topic {configured}'}: {_some(changed)}"
        case WidenTopic(topic=topic):
            words = f"add columns to topic {topic}"
        case ChangeAcls(add=added, remove=removed):
            changes = [*(f"add {acl}" for acl in added), *(f"remove {acl}" for acl in removed)]
            words = f"change ACLs: {_some(changes)}"
        case SetQuota(principal=principal, kind=quota, limit=limit):
            words = f"set {quota} of {principal} to {'nothing of its own' if limit is None else limit}"
        case _:
            assert_never(asked)
    return words


def _of_partitions(asked: Reassign | CancelReassignment | ElectLeaders | AcknowledgeLoss) -> str:
    match asked:
        case Reassign(targets=targets):
            return f"reassign {_some(f'{name} to {list(target)}' for name, target in targets.items())}"
        case CancelReassignment(partitions=cancelled):
            return f"cancel the reassignment of {_some(cancelled)}"
        case ElectLeaders(kind=kind, partitions=wanted):
            return f"elect leaders ({kind}) {'wherever it can be done' if wanted is None else f'of {_some(wanted)}'}"
        case AcknowledgeLoss(known=known):
            return f"acknowledge the possible loss of {_some(known)}"
        case _:
            assert_never(asked)


def _moved(moved: BrokersMoved) -> str:
    return "; ".join(
        f"{'broker' if len(brokers) == 1 else 'brokers'} {_some(map(str, sorted(brokers)))} {what}"
        for brokers, what in (
            (moved.lost - moved.started, "gone"),
            (moved.lost & moved.started, "restarted"),
            (moved.started - moved.lost, "registered"),
            (moved.stopping, "shutting down"),
        )
        if brokers
    )


def _some(names: Iterable[str]) -> str:
    found: Collection[str] = tuple(names)
    shown = ", ".join(tuple(found)[:NAMED_MAX])
    shown = shown if len(shown) <= WORDS_MAX else f"{shown[:WORDS_MAX]}…"
    return shown if len(found) <= NAMED_MAX else f"{shown} and {len(found) - NAMED_MAX} others"
