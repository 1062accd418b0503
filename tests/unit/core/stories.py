"""What the stories of core and engine are told with: states, brokers and clusters in one line each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from spark_replication.config import Settings, settings_from
from spark_replication.core.controller.cluster import ClusterState, LoadedCluster, StoredTopic
from spark_replication.core.law.brokers import Brokers
from spark_replication.core.law.election import Policy
from spark_replication.core.law.writes import StoredPartition
from spark_replication.messages.commands import PartitionCommand
from spark_replication.model import (
    BrokerEpoch,
    BrokerId,
    ClusterSettings,
    PartitionState,
    PossibleLoss,
    Registration,
    TopicConfig,
    TopicPartition,
    TopicState,
)
from spark_replication.sim.scenarios.zookeeper_at_once import ZooKeeperAtOnce

FOO = TopicPartition("foo", 0)
FOO_ID = "id-foo"
BALANCED, MANUAL, PROACTIVE = Policy(), Policy(strategy="manual"), Policy(strategy="proactive")
UNCLEAN, CAUTIOUS = Policy(recovery_enabled=False, unclean_enabled=True), Policy(recovery_enabled=False)
POLICIES = st.sampled_from([BALANCED, MANUAL, PROACTIVE, UNCLEAN, CAUTIOUS])


def state(
    leader: BrokerId | None,
    isr: Iterable[BrokerId],
    *,
    elr: Iterable[BrokerId] = (),
    last_known_elr: Iterable[BrokerId] = (),
    epochs: Mapping[BrokerId, int] | None = None,
    leader_epoch: int = 4,
    min_isr: int = 2,
    **others: Any,
) -> PartitionState:
    """Members joined at broker epoch 0 unless `epochs` says otherwise."""
    members = sorted({*isr, *elr})
    return PartitionState(
        leader=leader,
        leader_epoch=leader_epoch,
        isr=frozenset(isr),
        elr=frozenset(elr),
        last_known_elr=frozenset(last_known_elr),
        epochs=dict.fromkeys(members, 0) | dict(epochs or {}),
        min_isr=min_isr,
        **others,
    )


def loss(
    first_epoch: int = 5,
    last_epoch: int | None = None,
    *,
    since_ms: int = 0,
    from_offset: int | None = None,
    records_max: int | None = None,
) -> PossibleLoss:
    """Of one election from outside at leader epoch 5, which follows that of `state`, unless it is said."""
    last_epoch = first_epoch if last_epoch is None else last_epoch
    return PossibleLoss(
        since_ms=since_ms,
        first_epoch=first_epoch,
        last_epoch=last_epoch,
        from_offset=from_offset,
        records_max=records_max,
    )


def brokers(
    *live: BrokerId,
    shutting_down: Iterable[BrokerId] = (),
    epochs: Mapping[BrokerId, int] | None = None,
    clean_since: Mapping[BrokerId, int] | None = None,
) -> Brokers:
    """1 to 5 have registered; `live` are so now. At epoch 0, clean since then, unless it is said."""
    return Brokers(
        live=frozenset(live),
        electable=frozenset(live) - frozenset(shutting_down),
        epochs=dict.fromkeys(range(1, 6), 0) | dict(epochs or {}),
        clean_since=dict.fromkeys(range(1, 6), 0) | dict(clean_since or {}),
    )


def registration(broker: BrokerId, *, epoch: int = 0, rack: str | None = None, host: str | None = None) -> Registration:
    return Registration(
        host=host or f"host-{broker}",
        port=1,
        replication_port=2,
        epoch=epoch,
        incarnation=f"{broker}-{epoch}",
        rack=rack,
    )


def settings(**given: Any) -> Settings:
    """`min_insync_replicas=1` stands for min.insync.replicas."""
    return settings_from({name.replace("_", "."): value for name, value in given.items()})


def topic(
    *partitions: tuple[BrokerId, ...],
    name: str = "foo",
    adding: Mapping[int, tuple[BrokerId, ...]] | None = None,
    removing: Mapping[int, tuple[BrokerId, ...]] | None = None,
    origin: Mapping[int, tuple[BrokerId, ...]] | None = None,
) -> TopicState:
    """Its partitions in order, from 0 on."""
    return TopicState(
        topic_id=f"id-{name}",
        partitions=dict(enumerate(partitions)),
        adding=dict(adding or {}),
        removing=dict(removing or {}),
        origin=dict(origin or {}),
    )


def loaded(
    *live: BrokerId,
    topics: Mapping[str, TopicState],
    states: Mapping[str, PartitionState] | None = None,
    configs: Mapping[str, TopicConfig] | None = None,
    shutting_down: Iterable[BrokerId] = (),
    stored_settings: ClusterSettings | None = None,
    **given: Any,
) -> LoadedCluster:
    """1 to 5 have registered; `live` are so now. Topics are at version 1, states (by `foo-0`) at 7."""
    of_topics = configs or {}
    stopping = set(shutting_down)
    epochs = {broker: BrokerEpoch(epoch=0, incarnation=f"{broker}-0", clean_since=0) for broker in range(1, 6)}
    return LoadedCluster(
        cluster_id="story",
        controller_epoch=1,
        settings=settings(**given),
        stored_settings=stored_settings or ClusterSettings(),
        topics={name: StoredTopic(found, 1, of_topics.get(name, TopicConfig())) for name, found in topics.items()},
        partitions={
            TopicPartition.parse(name): StoredPartition(found, 7, zxid=70) for name, found in (states or {}).items()
        },
        brokers={broker: replace(registration(broker), shutting_down=broker in stopping) for broker in live},
        broker_epochs=epochs,
        zxid=71,
    )


def zookeeper(
    *live: BrokerId,
    topics: Mapping[str, TopicState],
    states: Mapping[str, PartitionState] | None = None,
    shutting_down: Iterable[BrokerId] = (),
    **given: Any,
) -> ZooKeeperAtOnce:
    """One that holds what `loaded` is read from."""
    store = ZooKeeperAtOnce(settings(**given))
    for broker in range(1, 6):
        store.register(broker, clean=False, rack=None)
    for broker in sorted({1, 2, 3, 4, 5}.difference(live)):
        store.remove_registration(broker)
    for broker in shutting_down:
        store.shut_down(broker)
    for name, found in topics.items():
        of = {TopicPartition.parse(each): (stored, 7) for each, stored in (states or {}).items()}
        store.place(name, found, {p.partition: stored for p, stored in of.items() if p.topic == name}, version=1)
    return store


def cluster_of(*live: BrokerId, now_ms: int = 0, **stored: Any) -> ClusterState:
    """What a controller knows that has just loaded such a ZooKeeper."""
    cluster = ClusterState(loaded(*live, **stored))
    cluster.now_ms = now_ms
    return cluster


def command(
    stored: PartitionState,
    partition_epoch: int = 0,
    *,
    replicas: tuple[BrokerId, ...] = (1, 2, 3),
    partition: TopicPartition = FOO,
    topic_id: str = FOO_ID,
    **others: Any,
) -> PartitionCommand:
    return PartitionCommand(
        topic=partition.topic,
        partition=partition.partition,
        topic_id=topic_id,
        replicas=replicas,
        state=stored,
        partition_epoch=partition_epoch,
        **others,
    )


REPLICAS = (1, 2, 3, 4)


@st.composite
def any_brokers(draw: st.DrawFn) -> Brokers:
    """Some live, some shutting down, with any history of clean and unclean registrations."""
    live = draw(st.frozensets(st.sampled_from(REPLICAS)))
    stopping = draw(st.frozensets(st.sampled_from(REPLICAS)))
    clean_since = {broker: draw(st.integers(0, 3)) for broker in REPLICAS}
    return Brokers(
        live=live,
        electable=live - stopping,
        epochs={broker: since + draw(st.integers(0, 2)) for broker, since in clean_since.items()},
        clean_since=clean_since,
    )


@st.composite
def any_state(draw: st.DrawFn, known: Brokers) -> PartitionState:
    """Any that ZooKeeper may hold: a member joined at an epoch that its broker has had."""
    parts = {broker: draw(st.sampled_from(["isr", "elr", "last_known_elr", "out"])) for broker in REPLICAS}
    isr = frozenset(broker for broker in REPLICAS if parts[broker] == "isr")
    min_isr = draw(st.integers(1, len(REPLICAS)))
    below = len(isr) < min_isr
    elr = frozenset(broker for broker in REPLICAS if parts[broker] == "elr" and below)
    return PartitionState(
        leader=draw(st.sampled_from([None, *sorted(isr)])),
        leader_epoch=draw(st.integers(0, 9)),
        isr=isr,
        elr=elr,
        last_known_elr=frozenset(broker for broker in REPLICAS if parts[broker] == "last_known_elr" and below),
        last_known_leader=draw(st.sampled_from([None, *REPLICAS])),
        epochs={member: draw(st.integers(0, known.epochs[member])) for member in sorted(isr | elr)},
        min_isr=min_isr,
        recovering=draw(st.booleans()),
    )
