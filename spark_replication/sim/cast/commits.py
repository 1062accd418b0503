"""One commit of a simulated controller: its groups go out a few at a time, one multi() after the other.

After a lost answer, it reads what has become of the groups, as zk.controller.commit_pipeline does (core.law.standing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spark_replication.core.controller.events import PartitionsRead
from spark_replication.core.law.unreadable import ALL_READ
from spark_replication.core.law.writes import Deposed, Group, GroupAnswer, PartitionWrite, TopicWrite
from spark_replication.model import TopicPartition
from spark_replication.sim.world.zookeeper import Lost

if TYPE_CHECKING:
    from spark_replication.sim.cast.controllers import Commanding

GROUPS_PER_MULTI_MAX = 3
RETRY_MS = (10, 60)


class Commit:
    """The groups of one commit, and their answers so far."""

    def __init__(self, term: Commanding, groups: Sequence[Group], then: Callable[[list[GroupAnswer]], None]) -> None:
        self._term = term
        self._then = then
        self._groups = list(groups)
        self._answers: dict[int, GroupAnswer] = {}
        self._waiting = list(range(len(groups)))
        self._met = ALL_READ

    def send_next(self) -> None:
        if self._term.over:
            return
        if not self._waiting:
            self._then([self._answers[number] for number in range(len(self._groups))])
            if self._met.reasons:
                self._term.candidate.handle(PartitionsRead({}, self._met))
            return
        size = self._term.candidate.world.between(1, GROUPS_PER_MULTI_MAX)
        self._request("controller writes", self._alone(self._waiting[:size]), self._store)

    def _alone(self, numbers: Sequence[int]) -> Sequence[int]:
        """The first of these groups, up to one that writes what an earlier one writes: only the later write of the two
        would show."""
        written: set[TopicPartition | str] = set()
        for place, number in enumerate(numbers):
            mine = _written(self._groups[number])
            if mine & written:
                return numbers[:place]
            written |= mine
        return numbers

    def _store(self, group: Group) -> GroupAnswer:
        return self._term.candidate.zookeeper.commit(self._term.controller_epoch, group)

    def _find(self, group: Group) -> GroupAnswer | None:
        return self._term.candidate.zookeeper.store.found(group)

    def _request(self, what: str, numbers: Sequence[int], of: Callable[[Group], GroupAnswer | None]) -> None:
        term, groups = self._term, [self._groups[number] for number in numbers]
        world = term.candidate.world

        def operate() -> list[GroupAnswer | None]:
            answers = [of(group) for group in groups]
            self._met |= term.met_by(groups, answers)
            return answers

        def answered(answers: list[GroupAnswer | None] | Lost) -> None:
            if not isinstance(answers, Lost):
                found = {number: answer for number, answer in zip(numbers, answers, strict=True) if answer is not None}
                self._answers |= found
                self._waiting = [number for number in self._waiting if number not in found]
                self.send_next()
            elif answers.expired:
                self._answers |= dict.fromkeys(self._waiting, Deposed())
                self._waiting.clear()
                self.send_next()
            else:
                world.after(
                    world.between(*RETRY_MS),
                    "reads what it wrote",
                    lambda: self._request("reads what it wrote", numbers, self._find),
                    on=term.candidate,
                )

        term.session.request(what, operate, answered, groups)


def _written(group: Group) -> set[TopicPartition | str]:
    """The partitions and topics that the group names a version of."""
    versioned = (write for write in group if isinstance(write, (PartitionWrite, TopicWrite)))
    return {write.partition if isinstance(write, PartitionWrite) else write.topic for write in versioned}
