"""`sr.connect`: a cluster in a notebook. It works in a kernel without Spark, and draws charts if altair is installed.

Tables come from the controller, and have the columns that `frames` documents. With a Spark session they are Spark's
DataFrames of the same columns. If the session has Delta, and the mirror's path is known, partitions, brokers and events
come from the mirror's tables: each query reads the newest version, and finds more events than a controller tells. The
mirror does not have all of topics, lag and groups: these are always as they were told when they were asked for.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import chain
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_replication.admin.notebook.cells import grid_of
from spark_replication.admin.notebook.frames import (
    Frame,
    broker_frame,
    event_frame,
    group_frame,
    lag_frame,
    partition_frame,
    position_frame,
    topic_frame,
)
from spark_replication.admin.notebook.leaderships import timeline_of
from spark_replication.admin.notebook.moving import PlannedMoves
from spark_replication.client.asking.admin import DEADLINE_MS, Admin
from spark_replication.client.asking.descriptions import ClusterDescription, TopicDescription
from spark_replication.client.asking.health import Health
from spark_replication.client.asking.markup import Markup, joined, link, paragraph, styled, table
from spark_replication.client.finding.bootstrap import DELTA, FORMS
from spark_replication.client.reading.selection import Condition
from spark_replication.client.reading.topic_rows import TopicRows, topic
from spark_replication.config import BOOTSTRAP_VARIABLE
from spark_replication.core.moves.moves import BYTES_PER_SECOND
from spark_replication.core.moves.planning import named_partition
from spark_replication.core.replica.read_start import time_in_ms
from spark_replication.errors import InvalidRequest, ReplicationError
from spark_replication.messages.mirroring import EVENTS_MAX, DescribeEvents
from spark_replication.mirror.delta.paths import mirror_path
from spark_replication.model import BrokerId
from spark_replication.process.extras import importing_for
from spark_replication.process.threads import now_ms
from spark_replication.transport.security.security import Security

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_replication.admin.notebook.charts import OfflineChart
    from spark_replication.admin.notebook.drill import DrillResult
    from spark_replication.live.local_cluster import LocalCluster
    from spark_replication.spark.cluster import SparkCluster

#: A DataFrame of pandas, or of Spark if there is a session.
DataFrame: TypeAlias = Any


def connect(
    bootstrap: str | None = None,
    spark: SparkSession | None = None,
    *,
    mirror: str | None = None,
    page: str | None = None,
    security: Security | Mapping[str, Any] | None = None,
    deadline_ms: int = DEADLINE_MS,
) -> ConnectedCluster:
    """A cluster for a notebook. Nothing is asked of the cluster yet.

    `bootstrap` is $SPARK_REPLICATION_BOOTSTRAP if None. `mirror` is the mirror.path of the cluster, for a Spark session
    with Delta; if None, what follows `delta:` in the bootstrap. `page` is the address of the cluster's page, for links;
    if None, the controller is asked. The other parameters are Admin's."""
    where = bootstrap or os.environ.get(BOOTSTRAP_VARIABLE)
    if not where:
        raise InvalidRequest(f"it is not said where the cluster is: name {FORMS}, or set ${BOOTSTRAP_VARIABLE}")
    if mirror is None and where.startswith(DELTA):
        mirror = where.removeprefix(DELTA).strip()
    known = Security.of(security)
    return ConnectedCluster(
        where,
        Admin(where, security=known, deadline_ms=deadline_ms),
        spark,
        known,
        mirror=None if mirror is None else mirror_path(mirror),
        page=page,
    )


class ConnectedCluster:
    """Use `connect`. A context manager; thread-safe."""

    def __init__(
        self,
        bootstrap: str,
        admin: Admin,
        spark: SparkSession | None,
        security: Security,
        *,
        mirror: str | None,
        page: str | None,
    ) -> None:
        self.bootstrap = bootstrap
        self.admin = admin
        self._security = security
        self._spark = spark
        self._page = page
        self._mirror = mirror if spark is not None and mirror is not None and _spark_frames().has_delta(spark) else None

    def __repr__(self) -> str:
        return f"ConnectedCluster({self.bootstrap!r})"

    def _repr_html_(self) -> str:
        """The health, brokers and links of the cluster; the error if nobody answers."""
        try:
            health, cluster, topics = self.admin.health(), self.admin.describe_cluster(), self.admin.describe_topics()
        except ReplicationError as error:
            return paragraph(styled("critical"), f": {self.bootstrap}: {error}")
        return joined(Markup(health._repr_html_()), _broker_table(cluster, topics), self._links())

    @property
    def page(self) -> str | None:
        """The address of the cluster's page, from `connect` or else from the controller. None if it is unknown."""
        return self._page or self.admin.page_address()

    def _links(self) -> Markup:
        page = self.page
        return paragraph(joined(link(page, "page of the cluster"), "; ") if page else "", f"bootstrap {self.bootstrap}")

    def health(self) -> Health:
        return self.admin.health()

    # Tables

    def partitions(self, topics: Sequence[str] | None = None) -> DataFrame:
        """A row for each partition of these topics, or of all if None. Columns: frames.PARTITION_COLUMNS."""
        if self._spark is not None and self._mirror is not None:
            rows = _spark_frames().mirrored_partitions(self._spark, self._mirror)
            return rows if topics is None else rows.where(rows.topic.isin(*topics))
        return self._rows(partition_frame(self.admin.describe_topics(topics)))

    def brokers(self) -> DataFrame:
        """A row for each registered broker. Columns: frames.BROKER_COLUMNS."""
        if self._spark is not None and self._mirror is not None:
            return _spark_frames().mirrored_brokers(self._spark, self._mirror)
        return self._rows(broker_frame(self.admin.describe_cluster()))

    def topics(self) -> DataFrame:
        """A row for each topic. Columns: frames.TOPIC_COLUMNS."""
        return self._rows(topic_frame(self.admin.describe_topics()))

    def events(
        self,
        *,
        partitions: Sequence[str] = (),
        topics: Sequence[str] = (),
        brokers: Sequence[BrokerId] = (),
        cause: str | None = None,
        last: int | None = None,
    ) -> DataFrame:
        """The events of any of these, or of everything. Columns: frames.EVENT_COLUMNS.

        `last` is how many of the newest to return. If it is None, the controller returns 1,000, the oldest first; the
        mirror's table returns all, in no order."""
        if self._spark is not None and self._mirror is not None:
            asked = DescribeEvents(
                partitions=tuple(map(named_partition, partitions)),
                topics=tuple(topics),
                brokers=tuple(brokers),
                cause=cause,
            )
            return _spark_frames().mirrored_events(self._spark, self._mirror, asked, last)
        last = EVENTS_MAX if last is None else last
        found = self.admin.events(partitions=partitions, topics=topics, brokers=brokers, cause=cause, last=last)
        return self._rows(event_frame(found))

    def lag(self, topics: Sequence[str] | None = None) -> DataFrame:
        """A row for each replica that does not lead, as its leader tells. Columns: frames.LAG_COLUMNS."""
        return self._rows(lag_frame(self.admin.describe_topics(topics), self.admin.replicas(topics)))

    def groups(self) -> DataFrame:
        """A row for each consumer group, as its coordinator tells. Columns: frames.GROUP_COLUMNS."""
        return self._rows(group_frame(self.admin.groups()))

    def positions(self, groups: Sequence[str] | None = None) -> DataFrame:
        """A row for each partition that one of these groups reads, or has read; None for all groups. It says how far
        the group is behind. A group that nobody knows has no rows. Columns: frames.POSITION_COLUMNS."""
        if isinstance(groups, str):
            raise InvalidRequest(f'groups={groups!r}: name them in a list, as in ["{groups}"]')
        return self._rows(position_frame(self.admin.groups(groups)))

    def _rows(self, frame: Frame) -> DataFrame:
        return frame.to_pandas() if self._spark is None else _spark_frames().as_told(self._spark, frame)

    def topic(
        self,
        name: str,
        *,
        columns: Sequence[str] | None = None,
        since: datetime | int | None = None,
        where: Sequence[Condition] = (),
    ) -> TopicRows:
        """The rows of a topic, as a table: see sr.topic."""
        return topic(name, self.bootstrap, columns=columns, since=since, where=where, security=self._security)

    # Charts

    def timeline(self, topic: str, *, since: datetime | int | None = None) -> OfflineChart:
        """Who led each partition when, by the newest 1,000 events of the topic. Drag the chart, or zoom by the mouse
        wheel.

        `since` is a time with its zone, or ms since 1970. If it is None, the chart begins with the first event."""
        charts = _charts()
        since_ms = None if since is None else time_in_ms(since)
        (described,) = self.admin.describe_topics([topic])
        events = self.admin.events(topics=[topic], last=EVENTS_MAX)
        chart: OfflineChart = charts.timeline_chart(timeline_of(described, events, now_ms(), since_ms))
        return chart

    def grid(self, topics: Sequence[str] | None = None) -> OfflineChart:
        """Every partition of these topics, or of all if None, as a cell, coloured by its condition."""
        charts = _charts()
        chart: OfflineChart = charts.grid_chart(grid_of(self.admin.describe_topics(topics)))
        return chart

    # What changes something

    def plan(
        self,
        targets: Mapping[str, Sequence[BrokerId]] | None = None,
        *,
        over: Collection[BrokerId] | None = None,
        add: Collection[BrokerId] | None = None,
        without: Collection[BrokerId] | None = None,
        replace: Mapping[BrokerId, BrokerId] | None = None,
        replication_factor: int | None = None,
        balance_leaders: bool = False,
        topics: Collection[str] | None = None,
        bytes_per_second: int = BYTES_PER_SECOND,
    ) -> PlannedMoves:
        """Plan moves as Admin.plan_reassignment does. Nothing moves before the plan's `apply`. The estimate of time
        expects each broker to send `bytes_per_second`."""
        if bytes_per_second < 1:
            raise InvalidRequest(f"{bytes_per_second} bytes a second copy nothing: name 1 or more")
        found = self.admin.plan_reassignment(
            targets,
            over=over,
            add=add,
            without=without,
            replace=replace,
            replication_factor=replication_factor,
            balance_leaders=balance_leaders,
            topics=topics,
        )
        return PlannedMoves(self.admin, found, bytes_per_second)

    def drill(self, cluster: LocalCluster | SparkCluster) -> DrillResult:
        """Kill a broker (kill -9) that leads partitions of the drill's own topic, under load. It takes about 10 s.

        `cluster` is what has started this cluster, in this process: only one of its brokers is killed. `make drill`
        kills an executor and the driver as well, on a Spark cluster that it starts itself."""
        from spark_replication.admin.notebook.drill import Drill

        return Drill(self.admin, cluster).run()

    def close(self) -> None:
        self.admin.close()

    def __enter__(self) -> ConnectedCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _broker_table(cluster: ClusterDescription, topics: Sequence[TopicDescription]) -> Markup:
    partitions = [each for topic in topics for each in topic.partitions]
    leads = Counter(each.leader for each in partitions)
    replicas = Counter(chain.from_iterable(each.replicas for each in partitions))
    rows = [
        (
            each.id,
            f"{each.host}:{each.port}",
            each.rack,
            "shutting down" if each.shutting_down else "live",
            leads[each.id],
            replicas[each.id],
        )
        for each in cluster.brokers
    ]
    return table(("broker", "address", "rack", "state", "leads", "replicas"), rows)


def _charts() -> ModuleType:
    with importing_for("a chart"):
        from spark_replication.admin.notebook import charts
    return charts


def _spark_frames() -> ModuleType:
    from spark_replication.admin.notebook import spark_frames

    return spark_frames
