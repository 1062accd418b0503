"""A broker: its replicas, what it knows of the cluster, and the controller's commands.

After each registration, the broker refuses every command with NOT_READY until it has read its state from ZooKeeper
(B1). Commands of a lower controller epoch are refused (C1). engine.replica.partition is the way to each replica, so
that no partition waits for another. Finding a partition needs no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

import msgspec
from msgspec.structs import replace

from spark_replication.config import LIVE_ON_BROKERS, LOSSLESS, Settings, settings_from, with_topic
from spark_replication.core.law.acls import SETTING as ACLS
from spark_replication.core.law.quotas import SETTING as QUOTAS
from spark_replication.core.law.unreadable import ALL_READ, Unreadable
from spark_replication.core.replica.clock import believing, is_believed
from spark_replication.core.replica.replica import Leading, Me
from spark_replication.core.routing import NO_CHOICE
from spark_replication.core.settings_in_force import CAUTION, CLUSTER, TOPIC, cautious, in_force, over
from spark_replication.core.tables.table import is_table
from spark_replication.engine.broker.hidden_partitions import HiddenPartitions
from spark_replication.engine.broker.known_topics import NO_TOPICS, KnownTopics
from spark_replication.engine.broker.late_commands import LateCommands
from spark_replication.engine.broker.refused_replicas import RefusedReplicas
from spark_replication.engine.broker.registered_brokers import Registered, RegisteredBrokers
from spark_replication.engine.replica.copy_throttle import CopyThrottle
from spark_replication.engine.replica.partition import Holds, Lock, Partition, Post, Turns, waiting
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import (
    EpochBehindLog,
    NotReady,
    ReplicationError,
    StaleBrokerEpoch,
    StaleControllerEpoch,
    StorageFailed,
    UnknownTopicOrPartition,
)
from spark_replication.messages.actions import Sees
from spark_replication.messages.commands import (
    CommandAnswer,
    GetReplicaLogInfo,
    LeaderAndIsr,
    LogInfoWanted,
    PartitionCommand,
    ReplicaLogInfo,
    ReplicaLogInfos,
    StopReplica,
    ToBroker,
    UpdateMetadata,
)
from spark_replication.messages.descriptions import DescribeReplicas, DescribeTopics, Metadata, ReplicaSizes, TopicPage
from spark_replication.messages.envelope import NONE
from spark_replication.messages.observing import SettingInForce
from spark_replication.model import BrokerId, Registration, ReplicaOf, Scalar, TopicConfig, TopicPartition
from spark_replication.ports import FailureReports, Flusher, FollowerLinks, IsrStore, ReplicaLogs

# The partitions of a broker as ZooKeeper has them, and those that cannot be read.
Assigned = tuple[Iterable[PartitionCommand], Unreadable]
READINGS_MAX = 10  # after one INIT: a command that follows it makes a reading stale


class BrokerLoop:
    def __init__(
        self,
        cluster_id: str,
        *,
        logs: ReplicaLogs,
        isr_store: IsrStore,
        links: FollowerLinks,
        flusher: Flusher,
        failures: FailureReports,
        settings: Settings,
        locks: Callable[[], Lock],
        post: Post,
        now_ms: Callable[[], int],
    ) -> None:
        self.cluster_id = cluster_id
        self.me: Me | None = None
        #: Whoever does not have the broker alone looks at a copy. A list of its items is not taken at one blow: tuples
        #: are made meanwhile, so Python may collect garbage, and let other threads change it.
        self.replicas: dict[TopicPartition, Partition] = {}
        self._registered = RegisteredBrokers()
        #: All that commands said, and the part of it that clients are told: see `_learn`.
        self._known: dict[TopicPartition, PartitionCommand] = {}
        self._announced: dict[TopicPartition, PartitionCommand] = {}
        self._configs: dict[str, TopicConfig] = {}
        self._topics = NO_TOPICS  # for clients, as the last command left it
        self._late = LateCommands()
        self._logs = logs
        self._isr_store = isr_store
        self._links = links
        self._flusher = flusher
        self._failures = failures
        self._defaults = msgspec.to_builtins(settings)
        self._settings = settings
        self._throttle = CopyThrottle(links, locks())
        self._throttle.configure(settings.reassignment_bytes_per_second)
        self._locks = locks
        self._post = post
        #: Asked again for each partition of a command: one that opens thousands of logs may take many seconds, and a
        #: leader counts from when it began to lead how long its followers have been silent (I2).
        self._now_ms = now_ms
        #: Held by one command at a time, while it waits for disks, too. Requests of clients do not take it.
        self._guard = locks()
        self.refused = RefusedReplicas()
        self.hidden = HiddenPartitions()
        self._controller_epoch = -1
        #: The number of registrations, and of commands that start or stop replicas.
        self._carried_out = 0
        #: Whether this process has heard of the cluster's settings.
        self._configured = False
        #: The cluster's own settings, as this process has last heard of them. None: of none yet, or they could not be
        #: read.
        self.of_cluster: Mapping[str, Scalar] | None = None
        #: How far this broker's clock was ahead of ZooKeeper's as it registered. Replicas treat their logs accordingly.
        self.clock_ahead_ms = 0
        #: Who may do what (core.law.acls). None until it has heard of that.
        self.acls: str | None = None
        #: How much each may take (core.law.quotas).
        self.quotas = ""
        #: Controller epoch and number of the newest UpdateMetadata.
        self._metadata_told = (-1, 0)

    @property
    def brokers(self) -> Mapping[BrokerId, Registration]:
        return self._registered.known

    @property
    def known_topics(self) -> KnownTopics:
        """What clients are told of: another value after each command that may have changed it."""
        return self._topics

    # Its own life

    def registered(
        self,
        me: Me,
        known: Iterable[PartitionCommand],
        configs: Mapping[str, TopicConfig],
        brokers: Mapping[BrokerId, Registration],
        *,
        settings: Mapping[str, Scalar] | None,
        controller_epoch: int,
        unreadable: Unreadable = ALL_READ,
        unmade: Iterable[TopicPartition] = (),
        clock_ahead_ms: int = 0,
    ) -> dict[str, str]:
        """Start what is assigned to this broker, as it was read from ZooKeeper after the registration (B1). What the
        broker knew before and ZooKeeper no longer has is forgotten. A partition that cannot be read is neither started
        nor quarantined: nobody here decides about it (Z1).

        `settings` are the cluster's. With None, those could not be read: the present settings stay, and a process that
        has heard of none takes the ones that lose no record. unmade: the assigned partitions without a state.
        clock_ahead_ms: of ZooKeeper's clock (core.replica.clock). Returns the error code of each partition, NONE for
        one that has started: a sick partition keeps no other from starting."""
        with self._learning():
            if self.me != me:
                self._resign_all()  # leaderships of an earlier registration are void, even if nobody has said so yet
            self._read_epoch(controller_epoch)
            self._keep_only(unreadable)
            self.hidden.registered(unreadable)
            self.hidden.untold.update(unmade)
            self.refused.clear()  # every assigned partition is tried below
            was_believed, self.clock_ahead_ms = is_believed(self.clock_ahead_ms), clock_ahead_ms
            if is_believed(clock_ahead_ms) != was_believed:
                self._reconfigure(self._configs)
            if settings is not None or not self._configured:
                self.of_cluster = settings
                self._configure(LOSSLESS if settings is None else settings)
            self._registered.told(brokers)
            self._learn(known, configs)
            readable = [known for partition, known in self._known.items() if not unreadable.hides(partition)]
            mine = [command for command in readable if me.broker in command.replicas]
            self._quarantine_unassigned(mine, unreadable)
            errors = {str(command.topic_partition): self._carry_out(command, me) for command in mine}
            self._carried_out += 1
            self.me = me
            return errors

    def _keep_only(self, unreadable: Unreadable) -> None:
        """Forget all but what cannot be read: the rest is replaced by what was read."""
        for all_of in (self._known, self._announced):
            for partition in [each for each in all_of if not unreadable.hides(each)]:
                del all_of[partition]
        self._configs = {topic: known for topic, known in self._configs.items() if unreadable.hides_of(topic)}
        self._late.keep_only(unreadable)

    def initialized(self, told: Iterable[PartitionCommand], read: Callable[[], Assigned]) -> None:
        """After an INIT that named these partitions, quarantine every log that ZooKeeper no longer assigns to this
        broker (B1). The INIT is no proof by itself, since a late one knows nothing of a newer topic: `read` asks
        ZooKeeper, unless the INIT named all logs that are here.

        `read` blocks, without the guard. Its result counts only if no command was carried out meanwhile, else it reads
        again. After READINGS_MAX attempts the work is left to the next INIT or registration.
        """
        named = {(each.topic_partition, each.topic_id): each.replicas for each in told}
        for _ in range(READINGS_MAX):
            with self._alone():
                me, carried_out = self.me, self._carried_out
                if me is None or all(me.broker in named.get(found, ()) for found in self._logs.found()):
                    return
            assigned, unreadable = read()
            with self._alone():
                if self.me is me and self._carried_out == carried_out:
                    mine = [found for found in assigned if me.broker in found.replicas]
                    self._quarantine_unassigned(mine, unreadable)
                    return

    def read_hidden(self, me: Me, read: Assigned) -> None:
        """Carry out what was read of hidden.topics, unless the broker has registered again since it asked."""
        with self._learning():
            if self.me is me:
                for command in self.hidden.read(*read):
                    self._carry_out(command, me)

    def read_brokers(self, read: Callable[[], Registered]) -> None:
        """Read from ZooKeeper who is registered: without a live controller nobody else says so. `read` blocks, without
        the guard. What a controller says meanwhile is newer than what `read` finds."""
        with self._alone():
            began = self._registered.begin_reading()
        found = read()
        with self._alone():
            self._registered.read(began, found)

    def session_lost(self) -> None:
        """Stop leading and following, and refuse commands until the broker has registered again (B2)."""
        with self._alone():
            self._resign_all()

    def _resign_all(self) -> None:
        self.me = None
        for name, partition in self.replicas.items():
            with partition as replica:
                replica.resign(f"this broker lost its ZooKeeper session, and {name} with it")

    def waiting_to_move(self, broker: BrokerId) -> list[TopicPartition]:
        """The partitions that this broker leads and whose leadership can move to a replica on a broker that stays."""
        staying = {other for other, known in self.brokers.items() if not known.shutting_down and other != broker}
        led = ((name, partition.part) for name, partition in self.replicas.copy().items())
        return [each for each, part in led if isinstance(part, Leading) and staying.intersection(part.replicas)]

    def tick(self, now_ms: int, *, looks: bool, holds: Holds = waiting) -> None:
        """Give time to the partitions that wait for it, and with `looks` to all that this broker leads, so that they
        check who lags. Followers hear of high watermarks that have moved. A busy partition is left for the next tick.

        Cost: a look at each partition. One that is idle is not held, unless with `looks`."""
        with self._links.together():
            for partition in list(self.replicas.values()):
                is_due = partition.waits_for_time or (looks and partition.leads)
                if is_due or partition.may_tell:
                    with holds(partition) as replica:
                        if replica is not None and is_due:
                            replica.tick(now_ms)
                        if replica is not None:
                            replica.tell_high_watermark()

    def checkpoint(self, holds: Holds = waiting) -> None:
        """Save the high watermarks that have moved. A busy replica, or one whose disk refuses, is left for the next
        time: an older high watermark is safe, too.

        Cost: a look at each partition. One whose high watermark has not moved is not held."""
        for partition in [each for each in list(self.replicas.values()) if each.owes_a_checkpoint]:
            with holds(partition) as replica, suppress(StorageFailed):
                if replica is not None:
                    replica.checkpoint()
        self._logs.save_high_watermarks(durable=False)

    def flush_soon(self) -> None:
        """Begin to flush all logs, several at a time, while they still serve: `close` has less to wait for then."""
        for partition in list(self.replicas.values()):
            with partition as replica:
                replica.flush_soon()

    def close(self) -> dict[TopicPartition, ReplicationError]:
        """Stop leading and following, and flush every log that is here: a clean stop vouches for all. Returns the error
        of each log that could not be flushed: with any, the stop was not clean (B3). A high watermark that could not be
        saved stays an older one, which is safe."""
        failed: dict[TopicPartition, ReplicationError] = {}
        with self._alone():
            self.me = None
            for name, partition in self.replicas.items():
                with partition as replica:
                    replica.resign("this broker is stopping")
                    try:
                        replica.log.flush()
                    except ReplicationError as error:
                        failed[name] = error
                    replica.log.close()
            failed |= self._flush_unopened()
            self.replicas.clear()
            with suppress(StorageFailed):
                self._logs.save_high_watermarks(durable=True)
        return failed

    def _flush_unopened(self) -> dict[TopicPartition, ReplicationError]:
        """Flush the logs that this process has not opened: an earlier one may have been killed before it could. This
        one may stop before it has read its state, or could not read what they are, or their disk refused them."""
        failed: dict[TopicPartition, ReplicationError] = {}
        for name, topic_id in self._logs.found():
            opened = self.replicas.get(name)
            if opened is None or opened.topic_id != topic_id:
                try:
                    log = self._logs.open(name, topic_id, self._settings)
                    log.flush()
                    log.close()
                except ReplicationError as error:
                    failed[name] = error
        return failed

    # The controller's commands

    def leader_and_isr(self, command: LeaderAndIsr) -> CommandAnswer:
        with self._learning():
            me = self._ready(command)
            self._carried_out += 1
            # Brokers and settings have no epoch. UpdateMetadata is numbered; LeaderAndIsr may be late, and only adds.
            new = {each.topic for each in command.partitions if self._late.is_new(each.topic, each.topic_id)}
            configs = {topic: config for topic, config in command.topics.items() if topic in new}
            self._registered.told_by_chance(command.brokers)
            self._learn((), configs)
            errors, last_epochs = {}, {}
            # Leaders first: the followers on other brokers ask them as soon as they hear of them.
            for partition in sorted(command.partitions, key=lambda each: each.state.leader != me.broker):
                name = str(partition.topic_partition)
                errors[name] = self._carry_out(partition, me)
                if errors[name] == EpochBehindLog.code:
                    with self.replicas[partition.topic_partition] as replica:
                        last_epochs[name] = replica.log.epochs.last_epoch
            return CommandAnswer(broker_epoch=me.epoch, errors=errors, last_epochs=last_epochs)

    def update_metadata(self, command: UpdateMetadata) -> CommandAnswer:
        with self._learning():
            me = self._ready(command)
            told = (command.controller_epoch, command.number)
            if told <= self._metadata_told:
                return CommandAnswer(broker_epoch=me.epoch)  # late: this one, or a newer one, was carried out already
            self._metadata_told = told
            self._registered.told(command.brokers)
            if command.settings is not None:
                self.of_cluster = command.settings
                self._configure(command.settings)
            if command.complete:
                hidden = Unreadable(
                    topics=frozenset(command.unreadable_topics), partitions=frozenset(command.unreadable_partitions)
                )
                self.hidden.told(hidden)
                told_of = {known.topic_partition for known in command.partitions}
                gone = {each for each in self._known if each not in told_of and not hidden.hides(each)}
                # What was not made yet when this was sent may be made, and read here, by now: its command is not late.
                for partition in gone.intersection(command.unmade):
                    self._unlearn(partition)
                self._forget(gone.difference(command.unmade))
                self._configs = {
                    topic: known
                    for topic, known in self._configs.items()
                    if topic in command.topics or hidden.hides_of(topic)
                }
            self._learn(command.partitions, command.topics)
            for topic in command.deleted:
                self._configs.pop(topic, None)
                self._forget(each for each in [*self._known, *self.hidden.untold] if each.topic == topic)
            self._forget(command.removed)
            self.hidden.untold.update(command.unmade)
            return CommandAnswer(broker_epoch=me.epoch)

    def stop_replica(self, command: StopReplica) -> CommandAnswer:
        with self._alone():
            me = self._ready(command)
            self._carried_out += 1
            errors = {}
            for stop in command.partitions:
                name = stop.topic_partition
                partition = self.replicas.get(name)
                errors[str(name)] = NONE
                self._late.end(name, stop.topic_id, stop.order)
                if partition is not None and partition.topic_id == stop.topic_id and stop.covers(partition.order):
                    try:
                        self._stop(partition, delete=stop.delete, asked=True)
                    except ReplicationError as error:
                        errors[str(name)] = error.code
            return CommandAnswer(broker_epoch=me.epoch, errors=errors)

    def replica_log_info(self, command: GetReplicaLogInfo) -> ReplicaLogInfos:
        with self._alone():
            me = self._ready(command)
            return ReplicaLogInfos(
                broker_epoch=me.epoch, partitions=tuple(self._log_info(wanted) for wanted in command.partitions)
            )

    def _log_info(self, wanted: LogInfoWanted) -> ReplicaLogInfo:
        partition = self.replicas.get(wanted.topic_partition)
        if partition is None or partition.topic_id != wanted.topic_id:
            return ReplicaLogInfo(
                topic=wanted.topic,
                partition=wanted.partition,
                topic_id=wanted.topic_id,
                error=UnknownTopicOrPartition.code,
            )
        with partition as replica:
            return replica.log_info(wanted.leader_epoch)

    def _ready(self, command: ToBroker) -> Me:
        if self.me is None:
            raise NotReady("this broker has not read its state from ZooKeeper yet: retry")
        if command.broker_epoch not in (None, self.me.epoch):
            raise StaleBrokerEpoch(f"this is broker epoch {self.me.epoch}, and that was for {command.broker_epoch}")
        if command.controller_epoch < self._controller_epoch:
            raise StaleControllerEpoch(
                f"controller epoch {command.controller_epoch} is over, {self._controller_epoch} commands: step down"
            )
        self._controller_epoch = command.controller_epoch
        return self.me

    def _carry_out(self, command: PartitionCommand, me: Me) -> str:
        try:
            self._apply(command, me)
        except StorageFailed as error:
            # Reported apart from the answer: a command that was read in ZooKeeper has no sender to answer.
            self._failures.failed(ReplicaOf(command.topic_partition, command.topic_id), error)
            self.refused.add(command.topic_partition, self._now_ms())
            return error.code
        except ReplicationError as error:
            return error.code
        return NONE

    def try_refused(self) -> None:
        """Carry out again, after `disk.retry.ms`, what a disk refused. With no session, the next registration does."""
        with self._alone():
            for partition in self.refused.take(self._now_ms(), self._settings.disk_retry_ms):
                known = self._known.get(partition)
                if known is not None and self.me is not None and self.me.broker in known.replicas:
                    self._carry_out(known, self.me)

    def _apply(self, command: PartitionCommand, me: Me) -> None:
        name = command.topic_partition
        if self.hidden.hides(name):
            raise NotReady(f"this broker could not read {name} in ZooKeeper, and does not know it yet: retry")
        if self._is_over(command, me):
            return
        self._learn((command,), {}, is_announced=False)
        partition = self.replicas.get(name)
        if partition is not None and partition.topic_id != command.topic_id:
            self._stop(partition, delete=True)
            partition = None
        partition = partition or self._open(command)
        with partition as replica:
            is_earlier = replica.is_of_before(command.state.created)
            if not is_earlier:
                replica.command(command, me, self._now_ms())
        if is_earlier:  # the log of a removed partition that was added again: none of it may be served (E4)
            self._stop(partition, delete=True)
            with self._open(command) as replica:
                replica.command(command, me, self._now_ms())

    def _is_over(self, command: PartitionCommand, me: Me) -> bool:
        """Whether the command comes too late, or assigns a partition that has left this broker since."""
        if self._late.is_late(command):
            return True
        known = self._known.get(command.topic_partition)
        same_topic = known is not None and known.topic_id == command.topic_id
        return known is not None and same_topic and known.order > command.order and me.broker not in known.replicas

    def _open(self, command: PartitionCommand) -> Partition:
        name = command.topic_partition
        config = self._configs.get(name.topic)
        if config is None:
            raise UnknownTopicOrPartition(f"nothing is known of topic {name.topic} but its name: retry")
        settings = self._settings_of(config)
        log = self._logs.open(name, command.topic_id, settings)
        turns = Turns(self._locks(), self._post)
        replica = ReplicaLoop(
            name,
            command.topic_id,
            log,
            settings=settings,
            isr_store=self._isr_store,
            links=self._links,
            flusher=self._flusher,
            failures=self._failures,
            throttle=self._throttle,
            post=turns.post,
        )
        partition = self.replicas[name] = Partition(replica, turns)
        return partition

    def _stop(self, partition: Partition, *, delete: bool, asked: bool = False) -> None:
        """Close a replica, and quarantine its log with `delete`. A log that stays is flushed first: a clean shutdown
        vouches for it, too (B3). With `asked` the controller has commanded the deletion; without, this broker
        concludes it."""
        name = partition.topic_partition
        with partition as replica:
            replica.resign(f"{name} is no longer on this broker")
            if not delete:
                replica.log.flush()
            replica.log.close()
        del self.replicas[name]
        if delete:
            self._logs.quarantine(name, partition.topic_id, asked=asked)

    def _read_epoch(self, controller_epoch: int) -> None:
        """Take over the controller epoch of ZooKeeper. A lower one than is known here means that ZooKeeper is as of an
        earlier time: the controllers that follow are obeyed all the same (Z2)."""
        if controller_epoch < self._controller_epoch:
            self._metadata_told = (-1, 0)
        self._controller_epoch = controller_epoch

    def _quarantine_unassigned(self, mine: list[PartitionCommand], unreadable: Unreadable) -> None:
        """Quarantine the logs that are not assigned to this broker. They are kept aside, not deleted: somebody may want
        them back (B1). A log whose assignment cannot be read stays where it is."""
        assigned = {(command.topic_partition, command.topic_id) for command in mine}
        for name, topic_id in list(self._logs.found()):
            if (name, topic_id) not in assigned and not unreadable.hides(name):
                partition = self.replicas.get(name)
                # A log that a disk refuses to move stays there, out of service: the next reading tries again.
                with suppress(StorageFailed):
                    if partition is not None and partition.topic_id == topic_id:
                        self._stop(partition, delete=True)
                    else:
                        self._logs.quarantine(name, topic_id, asked=False)

    # What clients ask

    def partition(self, name: TopicPartition) -> Partition:
        found = self.replicas.get(name)
        if found is None:
            raise UnknownTopicOrPartition(f"{name} is not on this broker: reload routes and retry")
        return found

    def give_turns(self, now_ms: int) -> None:
        """Let the throttle send more to replicas that are being copied, as time has passed (A3)."""
        self._throttle.tick(now_ms)

    def replica_sizes(self, asked: DescribeReplicas, now_ms: int) -> ReplicaSizes:
        """The sizes of the replicas that are here, without one that is unknown or whose disk fails. Replicas are held
        one at a time: an answer about many of them holds up none."""
        named = self.replicas if asked.partitions is None else asked.partitions
        found = []
        for name in sorted(named):
            partition = self.replicas.get(name)
            if partition is not None:
                with partition as replica, suppress(StorageFailed):
                    found.append(replica.size(now_ms))
        return ReplicaSizes(replicas=tuple(found))

    def config(self, topic: str) -> TopicConfig:
        """A topic's settings and schema, as far as this broker has heard of its schema versions."""
        config = self._configs.get(topic)
        if config is None:
            raise UnknownTopicOrPartition(f"this broker knows no topic {topic}: check its name, or retry")
        return config

    def metadata(
        self, topics: Iterable[str] | None, controller: str | None, only: Mapping[str, Iterable[int]] = NO_CHOICE
    ) -> Metadata:
        """Describe brokers and these topics (all with None), or `only` these partitions of them. An unknown topic is
        left out."""
        return Metadata(
            cluster_id=self.cluster_id,
            brokers=dict(self.brokers),
            controller=controller,
            topics=self._topics.told(topics, only),
        )

    def topics(self, asked: DescribeTopics, sees: Sees) -> TopicPage:
        return self._topics.page(asked, sees)

    def settings_in_force(self, topic: str | None, origins: Mapping[str, str]) -> tuple[SettingInForce, ...]:
        """The settings by which replicas are treated: of this topic, or of any that has none of its own. origins: of
        what this process was started with."""
        of_topic = TopicConfig() if topic is None else self._configs.get(topic)
        if of_topic is None:
            raise UnknownTopicOrPartition(f"this broker knows of no topic {topic}: check the name, or ask again")
        of_cluster = LOSSLESS if self.of_cluster is None else self.of_cluster
        taken = [name for name in of_cluster if name in LIVE_ON_BROKERS or name in (ACLS, QUOTAS)]
        origins = over(origins, taken, CAUTION if self.of_cluster is None else CLUSTER)
        origins = over(origins, of_topic.settings, TOPIC)
        settings = self._settings_of(of_topic)
        origins = over(origins, cautious(with_topic(self._settings, of_topic.settings), settings), CAUTION)
        return in_force(replace(settings, security_acls=self.acls or "", security_quotas=self.quotas), origins)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the guard. What a command says to other brokers, about thousands of partitions perhaps, it says
        together."""
        with self._guard, self._links.together():
            yield

    @contextmanager
    def _learning(self) -> Iterator[None]:
        """Hold the guard for a command that may change topics. Clients see all of its changes at once, when it ends.
        That costs a copy of what is known, 0.07 ms for 10,000 partitions."""
        with self._alone():
            try:
                yield
            finally:
                self.hidden.untold -= self._announced.keys()
                self._topics = KnownTopics(dict(self._announced), dict(self._configs), frozenset(self.hidden.untold))

    def _learn(
        self, known: Iterable[PartitionCommand], configs: Mapping[str, TopicConfig], *, is_announced: bool = True
    ) -> None:
        """A broker is commanded to lead or follow its own partitions of a topic before it hears of all others. Clients
        that counted those would place keys elsewhere, and miss rows: they are told of a partition once it is announced.
        """
        for command in known:
            name = command.topic_partition
            before = self._known.get(name)
            if before is None or (before.topic_id, before.order) < (command.topic_id, command.order):
                self._known[name] = command
                self._late.told_of(command.topic, command.topic_id)
            newest, announced = self._known[name], self._announced.get(name)
            if is_announced or (announced is not None and announced.topic_id == newest.topic_id):
                self._announced[name] = newest
        changed = {topic: config for topic, config in configs.items() if self._configs.get(topic) != config}
        self._configs.update(changed)
        if changed:
            self._reconfigure(changed)

    def _configure(self, of_cluster: Mapping[str, Scalar]) -> None:
        """Lay the cluster's settings over those of this process."""
        self._configured = True
        self.acls = str(of_cluster.get(ACLS, self._defaults[ACLS]))
        self.quotas = str(of_cluster.get(QUOTAS, self._defaults[QUOTAS]))
        live = {name: value for name, value in of_cluster.items() if name in LIVE_ON_BROKERS}
        settings = settings_from(self._defaults, live)
        if settings != self._settings:
            self._settings = settings
            self._throttle.configure(settings.reassignment_bytes_per_second)
            self._reconfigure(self._configs)

    @property
    def has_tables(self) -> bool:
        """Whether any topic is a table, as far as this broker has heard. Cost: a look at each topic."""
        by_default = self._settings.table
        configs = self._configs.copy()
        return any(is_table(name, config.settings, by_default=by_default) for name, config in configs.items())

    def _settings_of(self, config: TopicConfig) -> Settings:
        return believing(with_topic(self._settings, config.settings), self.clock_ahead_ms)

    def _reconfigure(self, changed: Mapping[str, TopicConfig]) -> None:
        """Hand changed settings to the replicas that are open."""
        settings: dict[str, Settings] = {}
        for name, partition in self.replicas.items():
            config = changed.get(name.topic)
            if config is not None:
                if name.topic not in settings:
                    settings[name.topic] = self._settings_of(config)
                with partition as replica:
                    replica.configure(settings[name.topic])

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self.hidden.untold.discard(partition)
            known = self._unlearn(partition)
            if known is not None:
                self._late.end(partition, known.topic_id, known.order)

    def _unlearn(self, partition: TopicPartition) -> PartitionCommand | None:
        """Returns what was known."""
        self._announced.pop(partition, None)
        return self._known.pop(partition, None)
