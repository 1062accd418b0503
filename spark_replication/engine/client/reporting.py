"""What a reader that is no member of its group reports of its positions, so that people see it as they see any other
group (G5): a Spark query, which goes on where its checkpoint says.

| event                                     | what follows                                                             |
| ----------------------------------------- | ------------------------------------------------------------------------ |
| new positions                             | those that have changed are sent, one report at a time: while one is     |
|                                           | under way the newest wait                                                |
| all were sent AGAIN_S ago                 | all are sent again: somebody may have deleted the group, and what is     |
|                                           | told seldom would be taken for what nobody reads any longer              |
| refused, and it may be retried            | again after RETRY_S                                                      |
| refused for want of a right, or since the | again after AGAIN_S: a person has to mend that                           |
| group has members                         |                                                                          |
| refused otherwise                         | nothing is reported any longer                                           |

Sans-IO: a driver sends what `next_report` says, and then calls what became of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from spark_replication.errors import GroupAuthorizationFailed, GroupNotEmpty, ReplicationError
from spark_replication.messages.groups import Holding, ResetGroup, ResetPlace
from spark_replication.model import TopicPartition

AGAIN_S = 600.0
RETRY_S = 5.0


class PositionReporting:
    def __init__(self, group: str) -> None:
        self.group = group
        self._newest: dict[TopicPartition, ResetPlace] = {}
        self._dropped: frozenset[TopicPartition] = frozenset()
        #: What the coordinator has taken.
        self._taken: dict[TopicPartition, ResetPlace] = {}
        #: From then on all is sent, and not only what has changed.
        self._all_due_s = -math.inf
        self._sends_all = False
        self._pause_until_s = -math.inf
        #: What the refusals were, of which people were told.
        self._said: set[str] = set()
        self._waits_for_people = False
        self._is_over = False

    def note(self, places: Mapping[TopicPartition, ResetPlace], dropped: Collection[TopicPartition]) -> None:
        """places: of all that is read. dropped: what is read no longer, and may have a position."""
        self._newest, self._dropped = dict(places), frozenset(dropped)

    @property
    def owes(self) -> bool:
        """Whether something is to be reported, and may be soon."""
        if self._is_over or self._waits_for_people:
            return False
        return any(self._taken.get(each) != place for each, place in self._newest.items())

    def next_report(self, now_s: float) -> ResetGroup | None:
        """What to send at present."""
        if self._is_over or now_s < self._pause_until_s or not self._newest:
            return None
        self._sends_all = now_s >= self._all_due_s
        known = {} if self._sends_all else self._taken
        places = tuple(place for each, place in sorted(self._newest.items()) if known.get(each) != place)
        dropped = tuple(Holding(*each) for each in sorted(self._dropped)) if self._sends_all else ()
        return ResetGroup(group=self.group, places=places, dropped=dropped) if places else None

    def wait_s(self, now_s: float) -> float | None:
        """How long to wait at most if there is nothing to send. None: until there are positions."""
        if self._is_over or not self._newest:
            return None
        return max(0.0, max(self._pause_until_s, self._all_due_s) - now_s)

    def taken(self, report: ResetGroup, now_s: float) -> None:
        if self._sends_all:
            self._all_due_s = now_s + AGAIN_S
        self._taken |= {TopicPartition(each.topic, each.partition): each for each in report.places}
        self._waits_for_people = False
        self._said.clear()

    def refused(self, error: ReplicationError, now_s: float) -> bool:
        """Whether people are to be told."""
        self._waits_for_people = isinstance(error, (GroupAuthorizationFailed, GroupNotEmpty))
        self._is_over = not error.retriable and not self._waits_for_people
        self._pause_until_s = now_s + (RETRY_S if error.retriable else AGAIN_S)
        is_news = error.code not in self._said
        self._said.add(error.code)
        return is_news
