"""What a controller's watches have marked, and what is to be told once it was read: brokers that come, go or shut down,
ISRs that leaders changed, and what could not be read and can be now.

A watch only marks what is to be read. The marks are taken, and the watches set again, before the first byte is read: so
nothing is lost, and a burst of changes is one event. A notification is deleted after its partitions were handed on, in
a multi() that checks the controller epoch: a deposed controller must not delete what its successor has not seen.

Leaders go on where somebody has removed the folder of notifications: of what they change then they tell nobody. So the
folder is made again, and after that everything is loaded anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from spark_replication.core.controller.events import BrokersRead, NodesUnreadable, PartitionsRead
from spark_replication.core.law.unreadable import Unreadable
from spark_replication.errors import CorruptState
from spark_replication.model import TopicPartition, decode, shortened
from spark_replication.zk import paths
from spark_replication.zk.contents import Contents, is_held, is_readable
from spark_replication.zk.isr_change import IsrChange
from spark_replication.zk.operations import (
    EXISTS,
    NOWHERE,
    Check,
    Committed,
    Create,
    Delete,
    Node,
    Operation,
    Rejected,
    UnreadNode,
)
from spark_replication.zk.reading import NodeReads, Reading
from spark_replication.zk.session import Watch

DELETIONS_IN_MULTI_MAX = 500
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0
LOOK_S = 5.0  # between two tries to read what could not be read

Told = BrokersRead | PartitionsRead | NodesUnreadable


class CandidacyOver(NamedTuple):
    """This candidacy is over."""

    why: str


FOLDER_LOST = CandidacyOver(f"{paths.ISR_CHANGES} was removed by somebody: everything is loaded anew")


class Marks(NamedTuple):
    """What is to be read."""

    brokers: bool
    changes: bool
    #: What could not be read before.
    held: tuple[str, ...]


class Changes(NamedTuple):
    #: The notifications that were read.
    names: list[str]
    #: By the path of each that cannot be read: why. It stays, since nobody knows which partitions it is about.
    left: dict[str, str]
    #: The partitions that they name.
    event: PartitionsRead
    #: Whether there is no folder of notifications.
    is_gone: bool = False


class Found(NamedTuple):
    brokers: BrokersRead | None
    changes: Changes | None
    #: One of `held` that can be read again, or is gone.
    readable: str | None


class Looking:
    def __init__(self, epoch_check: Check, unreadable: Unreadable, now_s: float, look_s: float = LOOK_S) -> None:
        """unreadable: what could not be read while loading. Once any of it can be read, this candidacy ends, and the
        next one loads it. Everything else is read a first time at once, so that nothing between loading and watching is
        missed."""
        self._epoch_check = epoch_check
        self._look_s = look_s
        self._brokers = self._changes = True
        self._unreadable_brokers = False
        self._held: set[str] = set()
        self._left: dict[str, str] = {}  # notifications that cannot be read, and why
        self._looks_at_s = now_s + look_s
        self._not_before_s = 0.0
        self._pause_s = PAUSE_S_MIN
        self._has_lost_folder = False
        self.hold(unreadable)

    def hold(self, unreadable: Unreadable) -> None:
        """Look at these from time to time: no event comes when an ACL is corrected."""
        self._held.update(path for path in unreadable.reasons if is_held(path))

    def mark(self, *, brokers: bool = False, changes: bool = False) -> None:
        self._brokers |= brokers
        self._changes |= changes

    @property
    def due_s(self) -> float:
        """When there is something to read. Infinite: not before it is marked."""
        if self._brokers or self._changes:
            return self._not_before_s
        return self._looks_at_s if self._held or self._unreadable_brokers else math.inf

    def taken(self, now_s: float) -> Marks:
        """What is to be read now. It counts as read from here on, unless it has `failed`."""
        looks = now_s >= self._looks_at_s
        marks = Marks(
            self._brokers or (looks and self._unreadable_brokers),
            self._changes,
            tuple(sorted(self._held)) if looks else (),
        )
        self._brokers = self._changes = False
        if looks:
            self._looks_at_s = now_s + self._look_s
        return marks

    def failed(self, marks: Marks, now_s: float) -> float:
        """Nothing could be read. Returns for how long nothing is due."""
        self.mark(brokers=marks.brokers, changes=marks.changes)
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, PAUSE_S_MAX)
        self._not_before_s = now_s + pause_s
        if marks.held:
            self._looks_at_s = self._not_before_s
        return pause_s

    def found(self, found: Found) -> Iterator[Told | CandidacyOver]:
        """What the controller is to be told. After that, `writes` are due."""
        self._pause_s = PAUSE_S_MIN
        if found.brokers is not None:
            # A broker that may not be read has no watch.
            self._unreadable_brokers = bool(found.brokers.unreadable.reasons)
            yield found.brokers
        if found.changes is not None:
            self._has_lost_folder |= found.changes.is_gone
            yield from self._changed(found.changes)
            if self._has_lost_folder and not found.changes.is_gone:
                yield FOLDER_LOST
        if found.readable is not None:
            yield CandidacyOver(f"{shortened(found.readable)} can be read again, or is gone: everything is loaded anew")

    def _changed(self, changes: Changes) -> Iterator[Told]:
        if changes.left != self._left:
            self._left = changes.left
            yield NodesUnreadable(paths.ISR_CHANGES, changes.left)
        self.hold(changes.event.unreadable)
        if changes.event.partitions or changes.event.unreadable.reasons:
            yield changes.event

    def writes(self, found: Found) -> Iterator[list[Operation]]:
        """The multi()s that delete what was handed on, or make the folder. Of each, `written` is to be told what came
        of it."""
        if found.changes is not None and found.changes.is_gone:
            yield [self._epoch_check, Create(paths.ISR_CHANGES)]
        names = [] if found.changes is None else found.changes.names
        for start in range(0, len(names), DELETIONS_IN_MULTI_MAX):
            some = names[start : start + DELETIONS_IN_MULTI_MAX]
            yield [self._epoch_check, *(Delete(paths.isr_change(name), EXISTS) for name in some)]

    def written(self, outcome: Committed | Rejected) -> CandidacyOver | None:
        if isinstance(outcome, Rejected) and outcome.operation == 0:
            return CandidacyOver("another controller raised /controller_epoch")
        if self._has_lost_folder:
            return FOLDER_LOST
        if isinstance(outcome, Rejected):
            self.mark(changes=True)  # somebody deleted one by hand: look again
        return None


def looked(marks: Marks, reads: NodeReads, brokers: Watch | None = None, changes: Watch | None = None) -> Found:
    """Read what was marked. The watches are set before."""
    return Found(
        Reading(reads).brokers(brokers) if marks.brokers else None,
        _changes(reads, changes) if marks.changes else None,
        _readable(reads, marks.held),
    )


def _readable(reads: NodeReads, held: Sequence[str]) -> str | None:
    nodes = reads.read_each(held) if held else ()
    return next((path for path, node in zip(held, nodes, strict=True) if is_readable(path, node)), None)


def _changes(reads: NodeReads, watch: Watch | None) -> Changes:
    names, listed_zxid = reads.folder_now(paths.ISR_CHANGES, watch)
    nodes = reads.read_each([paths.isr_change(name) for name in names])
    changed, left = _partitions_of(names, nodes)
    stored = reads.read_each([paths.leader_and_isr(partition) for partition in changed])
    contents = Contents()
    partitions = contents.stored(dict(zip(changed, stored, strict=True)))
    readable = [name for name in names if paths.isr_change(name) not in left]
    return Changes(readable, left, PartitionsRead(partitions, contents.unreadable), is_gone=listed_zxid == NOWHERE)


def _partitions_of(
    names: Iterable[str], nodes: Iterable[Node | UnreadNode | None]
) -> tuple[list[TopicPartition], dict[str, str]]:
    """The partitions of the notifications; and for those that cannot be read the reason, by path."""
    found: set[TopicPartition] = set()
    left: dict[str, str] = {}
    for name, node in zip(names, nodes, strict=True):
        path = paths.isr_change(name)
        if isinstance(node, UnreadNode):
            left[path] = node.why
        elif node is not None:
            try:
                found.update(decode(node.data, IsrChange, path).topic_partitions)
            except CorruptState as error:
                left[path] = error.message
    return sorted(found), left
