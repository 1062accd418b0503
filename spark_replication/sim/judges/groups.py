"""What must hold of consumer groups, as their members see them.

| invariant            | what it says                                                                                  |
| -------------------- | --------------------------------------------------------------------------------------------- |
| one_owner_per_epoch  | a grant of a partition, named by its epoch, is told to one member                             |
| no_stale_commit      | no commit is taken under a grant once a later one was told                                    |
| positions_never_lost | a group goes on where the last commit ended that was answered, or one that came after it      |
| nothing_is_skipped   | everything below a position that is committed was given to some member                        |

Of a partition, or of groups, whose log an election from outside ISR and ELR may have cut, nothing is asked any more.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_replication.messages.groups import Commit, CommitPositions, CommitTaken, GroupAnswer, GroupNews
from spark_replication.model import Offset, TopicPartition
from spark_replication.sim.world.world import InvariantBroken, World

ONE_OWNER = "one_owner_per_epoch"
NO_STALE_COMMIT = "no_stale_commit"
NEVER_LOST = "positions_never_lost"
NOTHING_SKIPPED = "nothing_is_skipped"

_Of = tuple[str, TopicPartition]  # a group and a partition
_Order = tuple[int, int]


class GroupsJudge:
    def __init__(self, world: World, *, may_be_cut: Callable[[str], bool]) -> None:
        """may_be_cut: whether the log of this group may have lost what was committed there."""
        self._world = world
        self._may_be_cut = may_be_cut
        self._excused: set[str] = set()
        self._owners: dict[tuple[str, TopicPartition, int], str] = {}
        self._newest: dict[_Of, int] = {}
        #: The answered commit of the highest order.
        self._taken: dict[_Of, tuple[_Order, Offset]] = {}
        #: What may have been taken beyond it.
        self._sent: dict[_Of, dict[_Order, Offset]] = {}
        self._given: dict[_Of, set[Offset]] = {}
        self._given_below: dict[_Of, Offset] = {}

    def is_excused(self, group: str) -> bool:
        if group not in self._excused and self._may_be_cut(group):
            self._excused.add(group)
            self._world.counts["group_excused"] += 1
        return group in self._excused

    def position(self, group: str, partition: TopicPartition) -> Offset:
        """The end of the last commit that was answered."""
        taken = self._taken.get((group, partition))
        return 0 if taken is None else taken[1]

    def is_given(self, group: str, partition: TopicPartition, offset: Offset, contents: list[bytes]) -> None:
        self._world.counts["given_to_group"] += len(contents)
        self._given.setdefault((group, partition), set()).update(range(offset, offset + len(contents)))

    def is_sent(self, commit: CommitPositions) -> None:
        """It has come to a coordinator, which may take it or not."""
        for each in commit.positions:
            sent = self._sent.setdefault((commit.group, each.topic_partition), {})
            sent[each.owner_epoch, commit.sequence] = each.offset

    def is_committed(self, commit: CommitPositions, answer: GroupAnswer) -> None:
        if self.is_excused(commit.group):
            return
        assert isinstance(answer, CommitTaken), "it is no refusal"
        refused = {TopicPartition(*each) for each in answer.refused}
        for each in commit.positions:
            if each.topic_partition not in refused:
                self._world.counts["committed_by_group"] += 1
                self._is_taken(commit, each)
            else:
                self._world.counts["commit_refused"] += 1

    def _is_taken(self, commit: CommitPositions, each: Commit) -> None:
        of = commit.group, each.topic_partition
        if self._newest.get(of, 0) > each.owner_epoch:
            raise InvariantBroken(
                NO_STALE_COMMIT,
                f"{commit.member} committed {each.topic_partition} to {each.offset} under grant {each.owner_epoch}, "
                f"and {self._newest[of]} was told",
            )
        order = each.owner_epoch, commit.sequence
        taken = self._taken.get(of)
        if taken is None or taken[0] < order:
            self._taken[of] = order, each.offset
            self._sent[of] = {sent: offset for sent, offset in self._sent[of].items() if sent > order}
        self._check_given(of, each.offset)

    def _check_given(self, of: _Of, end: Offset) -> None:
        given, below = self._given.get(of, set()), self._given_below.get(of, 0)
        for offset in range(below, end):
            if offset not in given:
                raise InvariantBroken(
                    NOTHING_SKIPPED, f"{of[0]} has committed {of[1]} to {end}, and nobody was given {offset}"
                )
        self._given_below[of] = max(below, end)

    def is_told(self, news: GroupNews) -> None:
        if self.is_excused(news.group):
            return
        for held in news.partitions:
            of = news.group, held.topic_partition
            owner = self._owners.setdefault((*of, held.owner_epoch), news.member)
            if owner != news.member:
                raise InvariantBroken(
                    ONE_OWNER, f"{held.topic_partition} is granted at {held.owner_epoch} to {owner} and {news.member}"
                )
            is_new = self._newest.get(of, 0) < held.owner_epoch
            self._newest[of] = max(self._newest.get(of, 0), held.owner_epoch)
            if is_new:
                self._check_position(of, held.owner_epoch, held.offset if held.topic_id is not None else None)

    def _check_position(self, of: _Of, owner_epoch: int, offset: Offset | None) -> None:
        taken = self._taken.get(of)
        allowed: set[Offset | None] = {None if taken is None else taken[1]}
        allowed.update(sent for order, sent in self._sent.get(of, {}).items() if order[0] < owner_epoch)
        if offset not in allowed:
            raise InvariantBroken(
                NEVER_LOST, f"{of[0]} goes on at {offset} in {of[1]}, and has committed {sorted(map(str, allowed))}"
            )
