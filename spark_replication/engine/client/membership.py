"""A member of a consumer group: what it says to the coordinator and when, what it holds, and what it has to commit.

| event                                    | what follows                                                              |
| ---------------------------------------- | ------------------------------------------------------------------------- |
| connected, and no member                 | it joins, and holds nothing                                               |
| connected, as a member                   | a beat that says what it holds; what it had to commit is sent again       |
| news: more than it holds                 | it begins to read that, where the group goes on                           |
| news: less than it holds                 | it hands that over: nothing of it is given out any longer                 |
| what it hands over is done with, and     | it does not hold that any longer, and says so                             |
| committed                                |                                                                           |
| a batch is done with                     | its end is committed, together with others, one commit at a time          |
| it has said nothing for a third of its   | a beat                                                                    |
| session                                  |                                                                           |
| no answer for half of its session        | the coordinator may be stopped, or its host gone: who coordinates now is  |
|                                          | looked for, before whoever that is gives its partitions to others         |
| what it asks is held back by a quota     | it waits for so much longer                                               |
| refused: it is no member                 | it holds nothing, and joins again: others read what it has not committed  |
| refused: others coordinate               | the connection is given up, and who coordinates is looked for             |
| refused otherwise, and it may be retried | it waits a little, and goes on                                            |
| refused for good                         | whoever uses the consumer gets the error                                  |
| it is to leave                           | what is done with is committed, and then it leaves                        |

Sans-IO: a driver calls what happened, and then does what `frames` and `reads` say.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from spark_replication.decoding import error_of
from spark_replication.engine.client.pausing import back_off_s
from spark_replication.errors import FencedMemberEpoch, NotCoordinator, ReplicationError, UnknownMember
from spark_replication.messages.groups import (
    Beat,
    Beaten,
    Commit,
    CommitPositions,
    CommitTaken,
    GroupAnswer,
    GroupFrame,
    GroupNews,
    GroupRefusal,
    GroupRequest,
    HeldPartition,
    Holding,
    Introduction,
    Joined,
    JoinGroup,
    LeaveGroup,
    Left,
)
from spark_replication.model import Offset, TopicPartition

BEATS_PER_SESSION = 3
ANSWERS_PER_SESSION = 2


class BeginReading(NamedTuple):
    held: HeldPartition


class EndReading(NamedTuple):
    """Nothing of it is given out from here on, also of what was read already."""

    partition: TopicPartition
    owner_epoch: int


Reading = BeginReading | EndReading


class _Held(msgspec.Struct):
    told: HeldPartition
    hands_over: bool = False


class Membership:
    def __init__(
        self, group: str, member: str, introduction: Introduction, *, commit_interval_s: float, now_s: float
    ) -> None:
        self.group = group
        self.member = member
        self._introduction = introduction
        self._commit_interval_s = commit_interval_s
        #: None: it is no member.
        self.epoch: int | None = None
        #: The group's epoch in the newest news that it has taken in.
        self._heard = 0
        self._held: dict[TopicPartition, _Held] = {}
        #: The partition of which a batch is in the hands of whoever uses the consumer.
        self._in_hand: TopicPartition | None = None
        self._to_commit: dict[TopicPartition, Commit] = {}
        #: The grant and the offset of the last commit of each partition that was taken.
        self._committed_to: dict[TopicPartition, tuple[int, Offset]] = {}
        self._sequence = 0
        #: Since when something is to be committed.
        self._commits_since_s: float | None = None
        self._is_urgent = False  # somebody waits for a commit
        self._is_connected = False
        self._number = 0
        self._asked: dict[int, GroupRequest] = {}
        #: None of these was answered since then.
        self._unanswered_since_s = now_s
        self._says_holdings = False  # what it holds is another than it said
        #: When it last gave a sign of life.
        self._said_s = now_s
        self._failures = 0
        self._pause_until_s = 0.0
        self._reads: list[Reading] = []
        self._is_leaving = False
        #: It has left, or was given up.
        self.is_over = False
        #: What ended it, if nobody asked for that.
        self.error: ReplicationError | None = None
        #: Who coordinates is to be looked for.
        self.has_lost_coordinator = False

    # What it holds

    @property
    def held(self) -> dict[TopicPartition, int]:
        """What it holds, with the epochs of the grants."""
        return {partition: held.told.owner_epoch for partition, held in self._held.items()}

    def reads(self) -> list[Reading]:
        """What to begin and to end reading, in this order."""
        reads, self._reads = self._reads, []
        return reads

    def gives_out(self, partition: TopicPartition, owner_epoch: int) -> bool:
        """Whether a batch that was read under this grant may be given to whoever uses the consumer. It is in hand then
        until the next one, or `done`."""
        held = self._held.get(partition)
        if held is None or held.hands_over or held.told.owner_epoch != owner_epoch or self._is_leaving:
            return False
        self._in_hand = partition
        return True

    def processed(
        self, partition: TopicPartition, owner_epoch: int, topic_id: str, offset: Offset, last_epoch: int, now_s: float
    ) -> bool:
        """Everything below `offset` is done with: that is to be committed. False: the partition is not held any
        longer."""
        held = self._held.get(partition)
        if held is None or held.told.owner_epoch != owner_epoch:
            return False
        self._to_commit[partition] = Commit(
            topic=partition.topic,
            partition=partition.partition,
            topic_id=topic_id,
            owner_epoch=owner_epoch,
            offset=offset,
            last_epoch=last_epoch,
        )
        if self._commits_since_s is None:
            self._commits_since_s = now_s
        return True

    def done(self) -> None:
        """No batch is in hand."""
        self._in_hand = None
        self._let_go()

    def commit_now(self) -> None:
        """Have what is to be committed sent at once."""
        self._is_urgent = bool(self._to_commit)

    def owes(self, partition: TopicPartition) -> bool:
        """Whether something of it is to be committed."""
        return partition in self._to_commit

    def has_committed(self, partition: TopicPartition, owner_epoch: int, offset: Offset) -> bool:
        """Whether this is what was committed last under this grant."""
        return self._committed_to.get(partition) == (owner_epoch, offset)

    # What happens

    def connected(self, now_s: float) -> None:
        self._is_connected, self._asked = True, {}
        self.has_lost_coordinator = False
        self._says_holdings = True
        self._said_s = self._unanswered_since_s = now_s

    def disconnected(self, now_s: float) -> None:
        self._is_connected, self._asked = False, {}
        self.has_lost_coordinator = True
        self._wait(now_s)

    def leave(self) -> None:
        self._is_leaving = self._is_urgent = True
        self._in_hand = None

    def answered(self, number: int, told: GroupAnswer, now_s: float) -> None:
        asked = self._asked.pop(number, None)
        if asked is None:
            return
        self._unanswered_since_s = max(self._unanswered_since_s, now_s)
        if isinstance(told, GroupRefusal):
            self._refused(asked, error_of(told.error, told.message), now_s)
            return
        self._failures = 0
        match told:
            case Joined(epoch=epoch):
                self.epoch = epoch
                self._heard = 0
            case CommitTaken(refused=refused):
                assert isinstance(asked, CommitPositions), "a commit is answered so"
                self._committed(asked, {TopicPartition(*each) for each in refused})
            case Left():
                self._be_nobody()
                self.is_over = True
            case Beaten():
                pass

    def held_back(self, until_s: float) -> None:
        """The coordinator takes nothing before, and says so."""
        self._unanswered_since_s = max(self._unanswered_since_s, until_s)

    def _committed(self, asked: CommitPositions, refused: set[TopicPartition]) -> None:
        for each in asked.positions:
            partition = each.topic_partition
            if self._to_commit.get(partition) is each:
                del self._to_commit[partition]
            if partition in refused:
                self._drop(partition)
            else:
                self._committed_to[partition] = each.owner_epoch, each.offset
        if not self._to_commit:
            self._commits_since_s, self._is_urgent = None, False
        self._let_go()

    def _refused(self, asked: GroupRequest, error: ReplicationError, now_s: float) -> None:
        if isinstance(error, (UnknownMember, FencedMemberEpoch)):
            self._be_nobody()
            self.is_over = self._is_leaving
        elif isinstance(error, NotCoordinator) or error.stale_routes:
            self.has_lost_coordinator = True
            self._wait(now_s)
        elif error.retriable:
            self._says_holdings = self._says_holdings or isinstance(asked, Beat)
            self._wait(now_s)
        else:
            self.error, self.is_over = error, True

    def _be_nobody(self) -> None:
        """It holds nothing, and what it had to commit is for others to read again."""
        self.epoch = None
        self._asked = {}
        for partition in [*self._held]:
            self._drop(partition)
        self._to_commit.clear()
        self._commits_since_s, self._is_urgent = None, self._is_leaving

    def news(self, news: GroupNews) -> None:
        if (news.member, news.epoch) != (self.member, self.epoch) or news.heard < self._heard:
            return
        self._heard = news.heard
        told = {each.topic_partition: each for each in news.partitions}
        for partition, held in self._held.items():
            known = told.get(partition)
            if (known is None or known.owner_epoch != held.told.owner_epoch) and not held.hands_over:
                held.hands_over = True
                self._reads.append(EndReading(partition, held.told.owner_epoch))
        for partition, known in told.items():
            if partition not in self._held and not self._is_leaving:
                self._held[partition] = _Held(known)
                self._reads.append(BeginReading(known))
        self._says_holdings = True
        self._let_go()

    def _let_go(self) -> None:
        for partition, held in [*self._held.items()]:
            if held.hands_over and partition != self._in_hand and partition not in self._to_commit:
                del self._held[partition]
                self._says_holdings = True

    def _drop(self, partition: TopicPartition) -> None:
        held = self._held.pop(partition, None)
        self._to_commit.pop(partition, None)
        if held is not None and not held.hands_over:
            self._reads.append(EndReading(partition, held.told.owner_epoch))
        if self._in_hand == partition:
            self._in_hand = None

    # What it says

    def _wait(self, now_s: float) -> None:
        self._failures += 1
        self._pause_until_s = now_s + back_off_s(self._failures)

    def frames(self, now_s: float) -> list[GroupFrame]:
        """What to send at present."""
        if self._asked and now_s >= self._answer_due_s:
            self.has_lost_coordinator = True
        if not self._is_connected or self.has_lost_coordinator or self.is_over or now_s < self._pause_until_s:
            return []
        found: list[GroupFrame] = []
        if self.epoch is None:
            if self._is_leaving:
                self.is_over = True
            elif not self._awaits(JoinGroup):
                joins = JoinGroup(group=self.group, member=self.member, introduction=self._introduction)
                found.append(self._frame(joins, now_s))
            return found
        if self._is_due_to_commit(now_s):
            found.append(self._frame(self._commit(self.epoch, now_s), now_s))
        if self._is_leaving and not self._to_commit and not self._awaits(LeaveGroup):
            found.append(self._frame(LeaveGroup(group=self.group, member=self.member, epoch=self.epoch), now_s))
        elif self._is_due_to_beat(now_s):
            found.append(self._frame(self._beat(self.epoch, now_s), now_s))
        return found

    def due_s(self, now_s: float) -> float:
        """When to look again, if nothing happens until then."""
        if now_s < self._pause_until_s:
            return self._pause_until_s
        dues = [self._answer_due_s] if self._asked else []
        if self.epoch is not None and not self._awaits(Beat):
            dues.append(self._said_s + self._beat_interval_s)
        if self._to_commit and not self._awaits(CommitPositions):
            dues.append(self._commit_due_s)
        return min(dues, default=math.inf)

    @property
    def _beat_interval_s(self) -> float:
        return self._introduction.session_ms / 1000 / BEATS_PER_SESSION

    @property
    def _answer_due_s(self) -> float:
        return self._unanswered_since_s + self._introduction.session_ms / 1000 / ANSWERS_PER_SESSION

    @property
    def _commit_due_s(self) -> float:
        if self._is_commit_awaited or self._commits_since_s is None:  # None: it was sent, and was not taken
            return 0.0
        return self._commits_since_s + self._commit_interval_s

    @property
    def _is_commit_awaited(self) -> bool:
        """Whether somebody does: whoever called, or the member that is to have the partition."""
        return self._is_urgent or any(self._held[each].hands_over for each in self._to_commit if each in self._held)

    def _is_due_to_commit(self, now_s: float) -> bool:
        return bool(self._to_commit) and not self._awaits(CommitPositions) and now_s >= self._commit_due_s

    def _is_due_to_beat(self, now_s: float) -> bool:
        if self._awaits(Beat):
            return False
        return self._says_holdings or now_s >= self._said_s + self._beat_interval_s

    def _commit(self, epoch: int, now_s: float) -> CommitPositions:
        self._sequence += 1
        self._commits_since_s = None
        self._said_s = now_s
        return CommitPositions(
            group=self.group,
            member=self.member,
            epoch=epoch,
            sequence=self._sequence,
            positions=tuple(self._to_commit.values()),
            is_awaited=self._is_commit_awaited,
        )

    def _beat(self, epoch: int, now_s: float) -> Beat:
        held = tuple(Holding(*partition) for partition in sorted(self._held)) if self._says_holdings else None
        self._says_holdings, self._said_s = False, now_s
        return Beat(group=self.group, member=self.member, epoch=epoch, heard=self._heard, held=held)

    def _awaits(self, kind: type[GroupRequest]) -> bool:
        return any(isinstance(asked, kind) for asked in self._asked.values())

    def _frame(self, asked: GroupRequest, now_s: float) -> GroupFrame:
        self._number += 1
        if not self._asked:
            self._unanswered_since_s = max(self._unanswered_since_s, now_s)
        self._asked[self._number] = asked
        return GroupFrame(number=self._number, asked=asked)
