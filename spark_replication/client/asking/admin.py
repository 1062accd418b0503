"""Admin: the requests of administrators and programs. A request that changes something goes to the controller.

Each call finds the controller or a broker by itself, and retries a retriable error until its deadline.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any

import pyarrow as pa

from spark_replication.client.asking.descriptions import (
    BrokerDescription,
    ClusterDescription,
    PartitionDescription,
    TopicDescription,
    described,
    described_cluster,
    known_losses,
)
from spark_replication.client.asking.group_metrics import group_exposition
from spark_replication.client.asking.group_resets import PositionChange, ResetRequest, reset_group
from spark_replication.client.asking.groups import GroupDescription, change_group, described_groups
from spark_replication.client.asking.health import Health, health_of
from spark_replication.client.asking.replica_sizes import (
    ReassignmentDescription,
    ReplicaDescription,
    bytes_of,
    moving_of,
    reassignments_of,
    replica_sizes,
    replicas_of,
)
from spark_replication.client.asking.told_settings import Process, told_settings
from spark_replication.client.finding.best_told import best_told, best_told_page
from spark_replication.client.finding.deadline import Deadline, persistently
from spark_replication.client.finding.known_tokens import TokensThere, known_tokens
from spark_replication.client.finding.routes import ASK_MS, Routes
from spark_replication.client.finding.topic_pages import topics_by_pages
from spark_replication.core.controller.requests import narrowed
from spark_replication.core.law.acls import ACLS
from spark_replication.core.moves.moves import Plan
from spark_replication.core.moves.planning import Goal, named_partition, plan_for
from spark_replication.core.tables.restoring import FoundTable, creation_of
from spark_replication.decoding import error_of
from spark_replication.errors import (
    InvalidRequest,
    LeaderNotAvailable,
    NotController,
    ReplicationError,
    RequestTimedOut,
    TableNotSealed,
    UnknownSchemaVersion,
    UnknownTopicOrPartition,
)
from spark_replication.messages.actions import (
    ADMIN_REQUESTS,
    DESCRIBE_ACLS,
    DESCRIBE_EVENTS,
    DESCRIBE_PAGE,
    DESCRIBE_QUOTAS,
    DESCRIBE_REPLICAS,
    METADATA,
    METRICS,
    REBUILD_MIRROR,
    Action,
    Asked,
    Told,
)
from spark_replication.messages.descriptions import (
    DescribeReplicas,
    GetMetadata,
    Metadata,
    ReplicaSize,
    TopicMetadata,
)
from spark_replication.messages.groups import DeleteGroup
from spark_replication.messages.mirroring import DescribeEvents, RebuildMirror, ToldEvent
from spark_replication.messages.observing import DescribePage, DescribeTokens, GetMetrics, MetricsText, ToldSettings
from spark_replication.messages.quotas import QuotaKind
from spark_replication.messages.records import Refusal
from spark_replication.messages.requests import (
    AcknowledgeLoss,
    AddPartitions,
    CancelReassignment,
    ChangeAcls,
    Configure,
    CreateTopic,
    DeleteTopic,
    DescribeAcls,
    DescribeQuotas,
    ElectionKind,
    ElectLeaders,
    Reassign,
    RemovePartitions,
    Request,
    RequestAnswer,
    SetQuota,
    ToldAcls,
    ToldQuotas,
    WidenTopic,
)
from spark_replication.model import BrokerId, Scalar, in_ranges
from spark_replication.storage.format.batches import stored_schema
from spark_replication.transport.security.security import Security

__all__ = ["Admin", "BrokerDescription", "ClusterDescription", "PartitionDescription", "TopicDescription"]

DEADLINE_MS = 30_000
TRY_MS = 10_000  # how long a controller has to answer, before the next try looks for the controller again


class Admin:
    """Administers a cluster. Thread-safe. Of no use in a fork: a process that is to make an Admin of its own is started
    by spawn or forkserver.

    `security` is settings by name (security.mode, …), or a Security. `deadline_ms` limits each call with all its tries.
    `reach_ms` is how long, at first, somebody is looked for who answers at all: then it is ClusterNotFound.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        security: Security | Mapping[str, Any] | None = None,
        deadline_ms: int = DEADLINE_MS,
        reach_ms: float | None = None,
    ) -> None:
        self._routes = Routes(bootstrap, Security.of(security), reach_ms=reach_ms)
        self._bootstrap = bootstrap
        self._deadline_ms = deadline_ms

    def __repr__(self) -> str:
        return f"Admin({self._bootstrap!r})"

    def create_topic(
        self,
        name: str,
        schema: pa.Schema,
        partitions: int | None = 3,
        replication_factor: int | None = 3,
        config: Mapping[str, Scalar] = {},
    ) -> TopicDescription:
        """Create a topic. Returns once every partition has a leader that brokers know of."""
        request = CreateTopic(
            name=name,
            schema=_schema_text(schema),
            partitions=partitions,
            replication_factor=replication_factor,
            config=dict(config),
        )
        deadline = Deadline(self._deadline_ms)
        self._ask(request, deadline, is_done=lambda: self._is_as_asked(request, deadline))
        newest = self._told(name, deadline)
        return persistently(lambda: self._led(name, request.partitions, newest, deadline), deadline)

    def restore_topic(self, table: FoundTable, replication_factor: int | None = None) -> TopicDescription:
        """Create the topic of a table below the cluster's table.path, which goes on where the table ends (TB7). Done
        again, it completes what an earlier try has begun. TableNotSealed: the table could not be taken over so far;
        the controller goes on trying."""
        request, deadline = creation_of(table, replication_factor), Deadline(self._deadline_ms)
        self._ask(request, deadline)
        newest = persistently(lambda: self._gone_on(request, deadline), deadline)
        return persistently(lambda: self._led(table.topic, len(newest.partitions), newest, deadline), deadline)

    def widen_topic(self, name: str, schema: pa.Schema) -> TopicDescription:
        """Add nullable columns at the end of a topic's schema: `schema` is the present one with the new columns.
        Batches of earlier versions are accepted, and read with nulls. Returns once every broker that answers knows the
        new schema."""
        request = WidenTopic(topic=name, schema=_schema_text(schema))
        deadline = Deadline(self._deadline_ms)
        self._ask(request, deadline)
        told = self._told(name, deadline)
        version = 0 if told is None else told.config.schema_version
        for address in self._broker_addresses(deadline):
            persistently(partial(self._heard_of, address, name, version, deadline), deadline)
        return described(persistently(lambda: self._known((name,), deadline), deadline)[0])

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records. Returns once no broker that answers knows the topic."""
        deadline = Deadline(self._deadline_ms)
        self._ask(DeleteTopic(topic=name), deadline, is_done=lambda: self._told(name, deadline) is None)
        for address in self._broker_addresses(deadline):
            persistently(partial(self._forgotten, address, name, deadline), deadline)

    def add_partitions(
        self,
        topic: str,
        count: int | None = None,
        assignment: Mapping[int, Sequence[BrokerId]] | None = None,
    ) -> TopicDescription:
        """Add partitions to a topic: up to `count` in all, or those of `assignment`, with the replicas of each new
        partition. Returns once every partition has a leader that brokers know of."""
        given = {number: tuple(replicas) for number, replicas in (assignment or {}).items()}
        request = AddPartitions(
            counts={} if count is None else {topic: count}, assignments={topic: given} if given else {}
        )
        deadline = Deadline(self._deadline_ms)
        known = self._told(topic, deadline)
        before = 0 if known is None else len(known.partitions)
        expected = before + len(given) if count is None else count

        def is_done() -> bool:
            found = self._told(topic, deadline)
            return found is not None and len(found.partitions) == expected

        self._raise_any(self._ask(request, deadline, is_done=is_done))
        newest = self._told(topic, deadline)
        return persistently(lambda: self._led(topic, expected, newest, deadline), deadline)

    def remove_partitions(self, topic: str, partitions: Sequence[int]) -> None:
        """Remove the last partitions of a topic, with all their records. Removing any other would move keys."""
        deadline = Deadline(self._deadline_ms)

        def is_done() -> bool:
            found = self._told(topic, deadline)
            return found is not None and not {known.partition for known in found.partitions} & set(partitions)

        request = RemovePartitions(partitions={topic: tuple(partitions)})
        self._raise_any(self._ask(request, deadline, is_done=is_done))

    def configure(self, topic: str | None, settings: Mapping[str, Scalar | None]) -> None:
        """Change settings of a topic, or of the cluster with None. A setting that is None is removed: what is set for
        the cluster holds again, or the default."""
        self._ask(Configure(topic=topic, settings=dict(settings)), Deadline(self._deadline_ms))

    def acls(self) -> ToldAcls:
        """Who may do what, and who may do everything."""
        return self._of_controller(DESCRIBE_ACLS, DescribeAcls(), Deadline(self._deadline_ms))

    def add_acls(self, *acls: str) -> None:
        """Let principals do something: `alice write topic orders`, `bob read prefix orders-`, `carol alter cluster`, or
        `* describe cluster` for everybody who is let in. One that is there stays. They hold at once at the controller,
        and at brokers as soon as it has told them."""
        self._change_acls(ChangeAcls(add=ACLS.each(acls)))

    def remove_acls(self, *acls: str) -> None:
        """Take back what `add_acls` gave. One that is not there is no error."""
        self._change_acls(ChangeAcls(remove=ACLS.each(acls)))

    def _change_acls(self, request: ChangeAcls) -> None:
        self._ask(request, Deadline(self._deadline_ms))

    def known_tokens(self, marks: Collection[str], principals: Collection[str] = ()) -> Mapping[str, TokensThere]:
        """Which of these tokens let somebody in at the controller, and at each broker, and how many tokens these
        principals have there. Token.mark tells one from others and shows nothing of it. A driver that stands by is not
        asked: nobody knows of it."""
        deadline = Deadline(self._deadline_ms)
        metadata = persistently(lambda: self._metadata((), deadline), deadline)
        asked = DescribeTokens(marks=tuple(marks), principals=tuple(principals))
        return known_tokens(self._routes, metadata, asked, deadline)

    def quotas(self) -> ToldQuotas:
        """How much principals may take, and whether that counts here."""
        return self._of_controller(DESCRIBE_QUOTAS, DescribeQuotas(), Deadline(self._deadline_ms))

    def set_quota(self, principal: str, kind: QuotaKind, limit: int | None) -> None:
        """Set how much a principal, or each by "*", may take of each broker and of the controller: bytes that it sends
        (producer_byte_rate) and is sent (consumer_byte_rate) a second, requests a second (request_rate), connections of
        Flight over which it calls (connections), and producers, readers and streams that are open (streams). None: no
        limit of its own, so that the one for "*" holds."""
        self._ask(SetQuota(principal=principal, kind=kind, limit=limit), Deadline(self._deadline_ms))

    def elect_leaders(
        self,
        kind: ElectionKind = "preferred",
        partitions: Sequence[str] | None = None,
        desired: Mapping[str, BrokerId] = {},
        *,
        without_table: bool = False,
    ) -> dict[str, ReplicationError]:
        """Elect leaders of these partitions (`orders-3`), or of all that the kind can act on. Returns the errors of the
        refused ones.

        With preferred, the first replica leads again, if it is in sync. The other kinds are for partitions without a
        leader, and may lose acknowledged records: unclean elects any live replica at once, longest_log_balanced and
        longest_log_proactive elect the longest log once replicas have answered, designation elects `desired`.

        Before they elect, the topic's table is sealed, so that no offset that it has is given to another record. If
        that cannot be, because the table is out of reach or lost, `without_table` elects all the same.
        """
        named = None if partitions is None else tuple(partitions)
        request = ElectLeaders(kind=kind, partitions=named, desired=dict(desired), without_table=without_table)
        return self._ask(request, Deadline(self._deadline_ms))

    def acknowledge_loss(self, known: Mapping[str, int] | None = None) -> dict[str, ReplicationError]:
        """Say that a person knows what partitions may have lost by elections from outside ISR and ELR: health, metrics
        and page show it no longer. `known` has the possible_loss.last_epoch of each partition (`orders-3`) as it was
        described; None stands for all that there is to acknowledge. Returns the errors of the refused ones."""
        if known is None:
            known = known_losses(map(described, self.metadata().topics))
        refused: dict[str, ReplicationError] = {}
        for topic in sorted({name.rpartition("-")[0] for name in known}):  # a request takes few topics
            together = {name: epoch for name, epoch in known.items() if name.rpartition("-")[0] == topic}
            refused |= self._ask(AcknowledgeLoss(known=together), Deadline(self._deadline_ms))
        return refused

    def reassign(self, targets: Mapping[str, Sequence[BrokerId]]) -> dict[str, ReplicationError]:
        """Begin to move each partition (`orders-3`) to the replicas of its target, in order of preference. Returns the
        errors of the refused ones; `reassignments` says what is under way."""
        request = Reassign(targets={name: tuple(replicas) for name, replicas in targets.items()})
        return self._ask(request, Deadline(self._deadline_ms))

    def plan_reassignment(
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
    ) -> Plan:
        """Plan which replicas move, and how many bytes, before anything moves. `apply` carries the plan out;
        Plan.from_json reads a stored one. `topics` limits the plan; None means all topics.

        Give one goal:
        - `targets`: the replicas that each partition (`orders-3`) is to have.
        - `over`: the brokers that the topics are to be spread over.
        - `add`: the brokers that are to have their share, beside those that have replicas.
        - `without`: the brokers that the topics are to leave.
        - `replace`: for each broker, the one that takes its place.
        - `replication_factor`: how many replicas each partition is to have.
        - `balance_leaders`: change the order of replicas alone, so that each broker is preferred as often.
        """
        goal = Goal(
            targets=None if targets is None else {name: tuple(replicas) for name, replicas in targets.items()},
            over=None if over is None else tuple(over),
            add=None if add is None else tuple(add),
            without=None if without is None else tuple(without),
            replace=None if replace is None else dict(replace),
            replication_factor=replication_factor,
            balance_leaders=balance_leaders or None,
            topics=None if topics is None else tuple(topics),
        )
        deadline = Deadline(self._deadline_ms)
        metadata = persistently(lambda: self._told_by_controller(None, deadline), deadline)
        sizes = replica_sizes(self._routes, metadata.brokers, None, deadline)
        return plan_for(goal, metadata, bytes_of(sizes))

    def apply(self, plan: Plan) -> dict[str, ReplicationError]:
        """Begin every move of the plan. Returns the errors of the refused ones: StalePlan if a partition has changed
        since it was planned. The other moves go on with or without this process; `reassignments` shows them."""
        refused: dict[str, ReplicationError] = {}
        for request in plan.requests():
            refused |= self._ask(request, Deadline(self._deadline_ms))
        return refused

    def drain_broker(self, broker: BrokerId) -> Plan:
        """Begin to move every replica away from a broker, and return that plan. The plan is refused as a whole if too
        few brokers would be left. The broker itself goes on: stop it once `reassignments` shows nothing of it."""
        plan = self.plan_reassignment(without=(broker,))
        self._raise_any(self.apply(plan))
        return plan

    def cancel_reassignment(self, partitions: Sequence[str]) -> dict[str, ReplicationError]:
        """Move partitions back to the replicas that they had before. Returns the errors of the refused ones."""
        return self._ask(CancelReassignment(partitions=tuple(partitions)), Deadline(self._deadline_ms))

    def reassignments(self) -> list[ReassignmentDescription]:
        """The reassignments that are under way, with their progress."""
        deadline = Deadline(self._deadline_ms)
        metadata = best_told(self._routes, None, deadline)
        moving = moving_of(metadata)
        named = tuple(command.topic_partition for command in moving)
        return reassignments_of(moving, replica_sizes(self._routes, metadata.brokers, named, deadline))

    def replicas(self, topics: Sequence[str] | None = None) -> list[ReplicaDescription]:
        """The size and the ends of each replica of these topics (None for all), and how far followers are behind. The
        replicas of a broker that does not answer are left out."""
        deadline = Deadline(self._deadline_ms)
        metadata = best_told(self._routes, None if topics is None else tuple(topics), deadline)
        named = tuple(command.topic_partition for topic in metadata.topics for command in topic.partitions)
        return replicas_of(self._routes, metadata, named, deadline)

    def groups(self, names: Sequence[str] | None = None) -> list[GroupDescription]:
        """Describe consumer groups, all or those of these names that there are: members, positions, and how many
        records each is behind."""
        return described_groups(self._routes, names, Deadline(self._deadline_ms))

    def reset_group(
        self,
        group: str,
        topic: str | None = None,
        partitions: Collection[int] | None = None,
        *,
        to: int | str | datetime,
        dry_run: bool = False,
    ) -> list[PositionChange]:
        """Set where a group goes on: in all partitions of the topics that it has positions in, or of `topic`, or in
        these partitions of it. Returns what has changed; with `dry_run` what would, and nothing is. GroupNotEmpty: it
        has members, which would go on where they are.

        `to` is an offset, "earliest", "latest", a datetime for the first record that was appended then or later, or a
        shift from where the group is by so many records, "+100" or "-100", as far as the log goes. A group that nobody
        knows is made so, if `topic` is named."""
        asked = ResetRequest(group, topic, partitions, to)
        return reset_group(self._routes, asked, Deadline(self._deadline_ms), dry_run=dry_run)

    def delete_group(self, name: str) -> None:
        """Forget the positions of a group without members. One that nobody knows is forgotten already."""
        change_group(self._routes, DeleteGroup(group=name), Deadline(self._deadline_ms))

    def wait_reassigned(self, partitions: Collection[str], timeout_s: float) -> None:
        """Wait until no reassignment of these partitions is under way; RequestTimedOut names one that still is. A
        reassignment goes on without anybody who waits."""
        deadline = Deadline(round(timeout_s * 1000))

        def ended() -> None:
            left = [str(c.topic_partition) for c in moving_of(best_told(self._routes, None, deadline))]
            left = [name for name in left if name in partitions]
            if left:
                raise RequestTimedOut(f"{len(left)} reassignments are under way, {left[0]} is the first: wait longer")

        persistently(ended, deadline)

    def metadata(self, topics: Sequence[str] | None = None) -> Metadata:
        """The metadata of these topics, or of all with None: what descriptions and health are made of. A topic that
        does not exist is left out."""
        return best_told(self._routes, None if topics is None else tuple(topics), Deadline(self._deadline_ms))

    def metadata_since(self, before: Metadata | None) -> Metadata:
        """The metadata of all topics, for whoever asks again and again. `before` is the last answer: its topics are
        sent again only if one of them has changed."""
        return best_told(self._routes, None, Deadline(self._deadline_ms), since=before)

    def sizes_on(self, address: str) -> tuple[ReplicaSize, ...]:
        """The sizes of the logs of the broker at this address (host:port). It is asked once, without a retry."""
        deadline = Deadline(self._deadline_ms).within_ms(ASK_MS)
        return self._routes.call(address, DESCRIBE_REPLICAS, DescribeReplicas(), deadline).replicas

    def describe_topics(self, names: Sequence[str] | None = None) -> list[TopicDescription]:
        """Describe topics in the order of `names`, or all sorted with None. UnknownTopicOrPartition names the topics
        that do not exist."""
        deadline = Deadline(self._deadline_ms)
        told = topics_by_pages(names, lambda asked: best_told_page(self._routes, asked, deadline))
        found = {topic.name: topic for topic in told}
        wanted = list(found) if names is None else names
        unknown = [name for name in wanted if name not in found]
        if unknown:
            raise UnknownTopicOrPartition(f"there is no topic {', '.join(unknown)}: check the name, or create it")
        return [described(found[name]) for name in wanted]

    def describe_cluster(self) -> ClusterDescription:
        return described_cluster(best_told(self._routes, (), Deadline(self._deadline_ms)))

    def health(self) -> Health:
        """The verdict on the cluster and its reasons. Each reason has its cause, and the command that mends it."""
        metadata = best_told(self._routes, None, Deadline(self._deadline_ms))

        def told(asked: DescribeEvents) -> tuple[ToldEvent, ...]:
            try:
                return self._events(asked, once=True)
            except ReplicationError:
                return ()  # that the mirror lags is among the reasons; a cause is worth less than the verdict

        return health_of(metadata, told)

    def events(
        self,
        *,
        partitions: Sequence[str] = (),
        topics: Sequence[str] = (),
        brokers: Sequence[BrokerId] = (),
        cause: str | None = None,
        last: int = 50,
        once: bool = False,
    ) -> list[ToldEvent]:
        """The newest events of the mirror, the newest last, about any of these, or about anything if none are named.
        With `once` the controller is asked one time, and not again if it does not answer soon."""
        asked = DescribeEvents(
            partitions=tuple(map(named_partition, partitions)),
            topics=tuple(topics),
            brokers=tuple(brokers),
            cause=cause,
            last=last,
        )
        return [*self._events(asked, once=once)]

    def _events(self, asked: DescribeEvents, *, once: bool) -> tuple[ToldEvent, ...]:
        if once:
            deadline = Deadline(ASK_MS)
            return self._routes.call(self._controller(deadline), DESCRIBE_EVENTS, asked, deadline).events
        return self._of_controller(DESCRIBE_EVENTS, asked, Deadline(self._deadline_ms)).events

    def rebuild_mirror(self) -> None:
        """Have the controller compare the mirror's tables with everything that it knows, and write what they lack. This
        mends rows or tables that somebody removed or changed. Returns once the tables are complete."""
        self._of_controller(REBUILD_MIRROR, RebuildMirror(), Deadline(self._deadline_ms))

    def metrics(self, broker: BrokerId | None = None, *, per_partition: bool = False) -> str:
        """The metrics of a broker, or with None those of the controller, which counts for the whole cluster: in the
        exposition format of Prometheus. `per_partition` adds series for each partition. InvalidRequest if the broker is
        not registered."""
        deadline = Deadline(self._deadline_ms)

        def ask() -> MetricsText:
            address = self._controller(deadline) if broker is None else self._address_of(broker, deadline)
            asked = GetMetrics(per_partition=per_partition)
            return self._routes.call(address, METRICS, asked, deadline.within_ms(TRY_MS))

        return persistently(ask, deadline).text

    def group_metrics(self) -> str:
        """How far groups are behind in each topic, in the exposition format of Prometheus. No broker knows this alone:
        coordinators are asked, and the leaders of what groups read."""
        return group_exposition(self.groups())

    def settings(
        self, process: Process = None, *, topic: str | None = None
    ) -> Mapping[str, ToldSettings | ReplicationError]:
        """Which settings are in force at a broker, at the `controller`, or with None at each of them, and where each
        value comes from; with `topic`, those that hold there for it. What each told, or why it did not, by `controller`
        and `broker 1`. The value of a setting that names a file is not told."""
        deadline = Deadline(self._deadline_ms)
        metadata = persistently(lambda: self._metadata((), deadline), deadline)
        return told_settings(self._routes, metadata, process, topic, deadline)

    def page_address(self) -> str | None:
        """The address of the page that the controller serves. None if there is none, or no controller answers."""
        deadline = Deadline(self._deadline_ms).within_ms(ASK_MS)
        try:
            return self._routes.call(self._controller(deadline), DESCRIBE_PAGE, DescribePage(), deadline).url
        except ReplicationError:
            return None

    def close(self) -> None:
        self._routes.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _ask(
        self, request: Request, deadline: Deadline, is_done: Callable[[], bool] = lambda: False
    ) -> dict[str, ReplicationError]:
        """Ask the controller until it has answered. Returns the errors of what it refused. After a try without an
        answer, a refusal may mean that this try took effect: `is_done` says whether it did. What waits for a table to
        be sealed is asked again."""
        maybe_done = False
        left, refused = request, dict[str, Refusal]()

        def attempt() -> RequestAnswer:
            nonlocal maybe_done, left
            try:
                answer = self._ask_controller(left, deadline)
                waits = [name for name, each in answer.errors.items() if each.error == TableNotSealed.code]
                refused.update({name: each for name, each in answer.errors.items() if name not in waits})
                if waits:
                    left = narrowed(request, waits)
                    raise TableNotSealed(answer.errors[waits[0]].message)
                return answer
            except ReplicationError as error:
                if maybe_done and not error.maybe_written and is_done():
                    return RequestAnswer()
                maybe_done = maybe_done or error.maybe_written
                raise

        # The controller knows every topic: a retry would find no more.
        answer = persistently(attempt, deadline, give_up=lambda error: error.code == UnknownTopicOrPartition.code)
        return {
            name: error_of(refusal.error, refusal.message, maybe_written=refusal.maybe_written)
            for name, refusal in {**answer.errors, **refused}.items()
            if not (maybe_done and is_done())
        }

    def _ask_controller(self, request: Request, deadline: Deadline) -> RequestAnswer:
        address = self._controller(deadline)
        return self._routes.call(address, ADMIN_REQUESTS[type(request)], request, deadline.within_ms(TRY_MS))

    def _of_controller(self, action: Action[Asked, Told], asked: Asked, deadline: Deadline) -> Told:
        def ask() -> Told:
            return self._routes.call(self._controller(deadline), action, asked, deadline.within_ms(TRY_MS))

        return persistently(ask, deadline)

    def _controller(self, deadline: Deadline) -> str:
        """Look up the controller's address. Each try does so anew: after a failure another may command."""
        address = self._metadata((), deadline).controller
        if address is None:
            raise NotController("no broker knows of a controller: start one, or wait until a standby takes over")
        return address

    def _address_of(self, broker: BrokerId, deadline: Deadline) -> str:
        registered = self._metadata((), deadline).brokers
        if broker not in registered:
            raise InvalidRequest(f"broker {broker} is not registered, {sorted(registered)} are: name one of these")
        return registered[broker].address

    @staticmethod
    def _raise_any(errors: Mapping[str, ReplicationError]) -> None:
        for error in errors.values():
            raise error

    def _told(self, topic: str, deadline: Deadline) -> TopicMetadata | None:
        """The topic as the controller knows it, which is ahead of every broker. None if the topic does not exist."""
        found = persistently(lambda: self._told_by_controller((topic,), deadline), deadline)
        return next((told for told in found.topics if told.name == topic), None)

    def _told_by_controller(self, topics: tuple[str, ...] | None, deadline: Deadline) -> Metadata:
        address, request = self._controller(deadline), GetMetadata(topics=topics)
        return self._routes.call(address, METADATA, request, deadline.within_ms(TRY_MS))

    def _broker_addresses(self, deadline: Deadline) -> list[str]:
        metadata = persistently(lambda: self._metadata((), deadline), deadline)
        return [registration.address for registration in metadata.brokers.values()]

    def _forgotten(self, address: str, topic: str, deadline: Deadline) -> None:
        if self._told_by(address, topic, deadline):
            raise LeaderNotAvailable(f"{topic} is deleted, and {address} still tells of it: look again")

    def _heard_of(self, address: str, topic: str, version: int, deadline: Deadline) -> None:
        for found in self._told_by(address, topic, deadline):
            if found.config.schema_version < version:
                raise UnknownSchemaVersion(
                    f"{topic} is widened, and {address} has not heard of its version {version} yet: look again",
                    maybe_written=True,
                )

    def _told_by(self, address: str, topic: str, deadline: Deadline) -> tuple[TopicMetadata, ...]:
        try:
            request = GetMetadata(topics=(topic,))
            return self._routes.call(address, METADATA, request, deadline.within_ms(TRY_MS)).topics
        except ReplicationError as error:
            if deadline.passed:  # then the failure says nothing about the broker
                late = f"{address} did not say in time what it knows of {topic}: look again"
                raise RequestTimedOut(late, maybe_written=True) from error
            return ()  # a broker that does not answer tells clients nothing; when it answers again, it is up to date

    def _led(
        self, name: str, partitions: int | None, newest: TopicMetadata | None, deadline: Deadline
    ) -> TopicDescription:
        """Describe the topic from a broker that knows all of `newest`, which is the controller's answer. Raises until
        every partition has a leader."""
        (topic,) = self._known((name,), deadline)
        at_least = {} if newest is None else {told.partition: told.order for told in newest.partitions}
        if newest is not None and newest.topic_id != topic.topic_id:
            raise LeaderNotAvailable(f"{name} was made again, and this broker has not heard of it: look again")
        led = [
            told.partition
            for told in topic.partitions
            if told.state.leader is not None and told.order >= at_least.get(told.partition, told.order)
        ]
        if not led or len(led) != len(topic.partitions) or partitions not in (None, len(led)):
            raise LeaderNotAvailable(
                f"{name} is as asked, and {in_ranges(led)} of its {len(topic.partitions)} partitions have leaders so "
                "far: look again",
                maybe_written=True,
            )
        return described(topic)

    def _gone_on(self, request: CreateTopic, deadline: Deadline) -> TopicMetadata:
        """The topic as the controller knows it, once all of its partitions are made, and none waits for its table."""
        name = request.name
        found = self._told_by_controller((name,), deadline).topics
        if not found:
            raise UnknownTopicOrPartition(f"topic {name} was deleted meanwhile")
        waits = {number: each.why for number, each in found[0].waiting.items() if each.reason == "table"}
        if waits:
            why = next(filter(None, waits.values()), "nobody has said why")
            raise TableNotSealed(
                f"partitions {in_ranges(waits)} of {name} wait for its table: {why}", maybe_written=True
            )
        if len(found[0].partitions) < (request.partitions or 1):
            raise LeaderNotAvailable(f"partitions of {name} are being made: look again", maybe_written=True)
        return found[0]

    def _is_as_asked(self, request: CreateTopic, deadline: Deadline) -> bool:
        """Whether the topic that exists is the one that an unanswered try of ours made."""
        found = self._told(request.name, deadline)
        same_schema = found is not None and found.config.schema == request.schema
        return found is not None and same_schema and request.partitions in (None, len(found.partitions))

    def _known(self, names: Sequence[str], deadline: Deadline) -> tuple[TopicMetadata, ...]:
        """The metadata of all these topics, from one broker."""
        found = self._metadata(names, deadline).topics
        unknown = set(names) - {topic.name for topic in found}
        if unknown:
            raise UnknownTopicOrPartition(
                f"the broker that was asked does not know {', '.join(sorted(unknown))}: retry"
            )
        return found

    def _metadata(self, names: Sequence[str] | None, deadline: Deadline) -> Metadata:
        return self._routes.metadata(names, deadline)


def _schema_text(schema: pa.Schema) -> str:
    """The schema in the form in which topics store it."""
    if not isinstance(schema, pa.Schema):
        raise InvalidRequest(
            f"a topic's schema is a pyarrow.Schema, and this is a {type(schema).__name__}: another topic's is its "
            "description's arrow_schema, a DataFrame's pyspark.sql.pandas.types.to_arrow_schema(df.schema)"
        )
    return base64.b64encode(stored_schema(schema).serialize().to_pybytes()).decode("ascii")
