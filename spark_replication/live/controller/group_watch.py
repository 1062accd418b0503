"""Asks how far consumer groups are, for the mirror's table `groups`, as any client would ask: coordinators have the
positions, and leaders the ends of logs."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from spark_replication.client.asking.groups import GroupDescription, described_groups
from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.routes import Routes
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.errors import ReplicationError
from spark_replication.messages.groups import GROUPS_TOPIC
from spark_replication.mirror.tables.groups import GroupRow
from spark_replication.process.threads import now_ms
from spark_replication.transport.security.security import Security
from spark_replication.view.groups import place_by_lag

LOOK_MS = 10_000
REST_PARTS = 20  # looks take a twentieth of a processor at most, however many groups there are
ROWS_MAX = 10_000

log = logging.getLogger(__name__)


class GroupWatch:
    """Looks on a thread of its own, as long as a candidacy, once the first group has been there."""

    def __init__(
        self,
        cluster_id: str,
        address: str,
        security: Security,
        interval_s: float,
        tell: Callable[[Sequence[GroupRow]], None],
    ) -> None:
        """address: of the controller, which knows who leads. tell: takes the rows; the thread calls it."""
        self._cluster_id = cluster_id
        self._routes = Routes(address, security)
        self._interval_s = interval_s
        self._tell = tell
        self._changed = threading.Condition()  # guards what follows
        self._has_groups = False
        self._is_over = False
        #: An earlier controller may have told of some.
        self._had_rows = True
        self._failed = ""
        self._thread = threading.Thread(target=self._run, name="mirror-groups", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Begin no more looks. One that is under way ends at once."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._routes.close()

    def heed(self, cluster: ClusterState) -> None:
        """Called on the controller's thread now and then."""
        if not self._has_groups and GROUPS_TOPIC in cluster.topics:
            with self._changed:
                self._has_groups = True
                self._changed.notify_all()

    def _run(self) -> None:
        rest_s = 0.0
        while self._may_look(rest_s):
            began_s = time.thread_time()
            self._look()
            rest_s = rest_after(time.thread_time() - began_s, self._interval_s)

    def _may_look(self, rest_s: float) -> bool:
        """Wait until a look is due. False: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, rest_s)
            self._changed.wait_for(lambda: self._is_over or self._has_groups)
            return not self._is_over

    def _look(self) -> None:
        try:
            groups = described_groups(self._routes, None, Deadline(LOOK_MS))
            rows = most_behind(rows_of(groups, self._cluster_id, now_ms()))
        except ReplicationError as error:
            if error.code != self._failed and not self._is_over:
                log.warning("the mirror's table `groups` stays as it is: %s. It is tried again", error)
            self._failed = error.code
            return
        except Exception:
            log.exception("the mirror's table `groups` met an error that nobody expected: please report")
            return
        self._failed = ""
        if rows or self._had_rows:
            self._tell(rows)
        self._had_rows = bool(rows)


def rest_after(worked_s: float, interval_s: float) -> float:
    return max(interval_s, (REST_PARTS - 1) * worked_s)


def most_behind(rows: Iterator[GroupRow]) -> list[GroupRow]:
    """At most ROWS_MAX."""
    found = heapq.nsmallest(ROWS_MAX, rows, key=lambda row: place_by_lag(row.lag_records))
    return sorted(found, key=lambda row: (row.group, row.topic, row.partition))


def rows_of(groups: Sequence[GroupDescription], cluster_id: str, told_ms: int) -> Iterator[GroupRow]:
    for group in groups:
        members = {each.member: each for each in group.members}
        for each in group.partitions:
            member = None if each.member is None else members[each.member]
            yield GroupRow(
                cluster_id=cluster_id,
                group=group.group,
                topic=each.topic,
                partition=each.partition,
                state=group.state,
                position=each.offset,
                position_epoch=each.last_epoch,
                log_end=each.end,
                lag_records=each.lag,
                lag_ms=each.lag_ms,
                member=None if member is None else member.name,
                host=None if member is None else member.host,
                committed_ms=each.committed_ms,
                told_ms=told_ms,
            )
