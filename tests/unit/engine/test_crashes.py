"""C4: a controller may die after any of its writes; its successor ends where it would have ended itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from spark_replication.core.controller.events import Event, PartitionsRead, Requested, TookOver
from spark_replication.core.controller.plan import Reply
from spark_replication.core.controller.widening import incomparable
from spark_replication.core.law.writes import IsrWrite
from spark_replication.core.replica.isr import changed
from spark_replication.engine.controller.controller_loop import ControllerLoop
from spark_replication.messages.requests import (
    AddPartitions,
    DeleteTopic,
    ElectLeaders,
    Reassign,
    RemovePartitions,
    Request,
)
from spark_replication.model import BrokerId, PartitionState, TopicPartition, TopicState
from spark_replication.ports import NoMirror
from spark_replication.sim.scenarios import memory_store
from spark_replication.sim.scenarios.memory_store import ControllerDied, MemoryStore
from tests.unit.core.stories import topic, zookeeper
from tests.unit.engine.ports_in_memory import Sent

BROKERS = (1, 2, 3, 4)
PATH = "/admin/a"

# What happens to ZooKeeper, and what the controller hears of it; nothing, where it cannot happen now.
Happening = Callable[[MemoryStore], Event | None]


def controller(store: MemoryStore) -> ControllerLoop:
    loaded = store.load()
    return ControllerLoop(
        loaded,
        store=store.session(loaded.controller_epoch),
        sender=Sent(),
        mirror=NoMirror(),
        answer=_no_answer,
        deposed=lambda: None,
        now_ms=0,
        compare_schemas=incomparable,
    )


def _no_answer(request: int, reply: Reply) -> None:
    """Nobody waits for one."""


def take_over(store: MemoryStore) -> ControllerLoop:
    loop = controller(store)
    loop.handle(TookOver(), 0)
    return loop


def register(broker: BrokerId, store: MemoryStore, *, clean: bool) -> Event:
    store.register(broker, clean=clean, rack=None)
    return store.brokers_read()


def lose(broker: BrokerId, store: MemoryStore) -> Event | None:
    return None if store.registered.pop(broker, None) is None else store.brokers_read()


def shut_down(broker: BrokerId, store: MemoryStore) -> Event | None:
    if broker not in store.registered:
        return None
    store.shut_down(broker)
    return store.brokers_read()


def write_isr(wanted: frozenset[BrokerId], number: int, store: MemoryStore) -> Event | None:
    """The leader finds these replicas caught up, and no others, as far as they live."""
    partition = TopicPartition("foo", number)
    stored, known = store.partitions.get(partition), store.topics.get("foo")
    if stored is None or stored.state.leader is None or known is None or number not in known.state.partitions:
        return None
    before, leader = stored.state, stored.state.leader
    isr = frozenset({leader}) | (wanted & store.brokers.electable).intersection(known.state.partitions[number])
    joining = {broker: store.brokers.epochs[broker] for broker in sorted(isr - before.isr)}
    write = IsrWrite(
        partition=partition,
        topic_id=known.state.topic_id,
        broker=leader,
        broker_epoch=store.brokers.epochs[leader],
        state=changed(before, isr, joining),
        version=stored.version,
        joining=joining,
    )
    if isr == before.isr or store.change_isr(write) is not None:
        return None
    return PartitionsRead({partition: store.partitions[partition]})


def request(asked: Request, store: MemoryStore) -> Event | None:
    if PATH in store.requests:
        return None
    store.requests[PATH] = Requested(asked=asked, path=PATH)
    return store.requests[PATH]


REPLICAS = st.lists(st.sampled_from(BROKERS), min_size=1, max_size=3, unique=True).map(tuple)
BROKER, SOME = st.sampled_from(BROKERS), st.frozensets(st.sampled_from(BROKERS))
NAMES = st.sampled_from(["foo-0", "foo-1", "foo-2"])
ASKED: st.SearchStrategy[Request] = st.one_of(
    st.builds(Reassign, targets=st.dictionaries(NAMES, REPLICAS, min_size=1)),
    st.just(DeleteTopic(topic="foo")),
    st.just(AddPartitions(counts={"foo": 3})),
    st.just(RemovePartitions(partitions={"foo": (2,)})),
    st.just(RemovePartitions(partitions={"foo": (1,)})),
    st.builds(ElectLeaders, kind=st.sampled_from(["preferred", "unclean", "longest_log_proactive"])),
)
HAPPENINGS: st.SearchStrategy[Happening] = st.one_of(
    st.builds(lambda broker: partial(lose, broker), BROKER),
    st.builds(lambda broker, clean: partial(register, broker, clean=clean), BROKER, st.booleans()),
    st.builds(lambda broker: partial(shut_down, broker), BROKER),
    st.builds(lambda wanted, number: partial(write_isr, wanted, number), SOME, st.integers(0, 2)),
    st.builds(lambda asked: partial(request, asked), ASKED),
)


@st.composite
def any_cluster(draw: st.DrawFn) -> MemoryStore:
    """Its brokers and leaders have gone through something, and its controller has dealt with it."""
    factor, count = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    store = zookeeper(
        *BROKERS,
        topics={"foo": topic(*(tuple(range(first, first + factor)) for first in range(1, count + 1)))},
        min_insync_replicas=draw(st.integers(1, 3)),
        unclean_recovery_enabled=draw(st.booleans()),
        unclean_recovery_strategy=draw(st.sampled_from(["balanced", "proactive"])),
        unclean_leader_election_enable=draw(st.booleans()),
        default_replication_factor=1,
    )
    loop = take_over(store)
    for happens in draw(st.lists(HAPPENINGS, max_size=6)):
        event = happens(store)
        if event is not None:
            loop.handle(event, 0)
    return store


def like(store: MemoryStore) -> MemoryStore:
    twin = copy.copy(store)
    twin.topics, twin.partitions, twin.requests = dict(store.topics), dict(store.partitions), dict(store.requests)
    twin.registered, twin.broker_epochs = dict(store.registered), dict(store.broker_epochs)
    twin.deleting = set(store.deleting)
    return twin


Place = tuple[dict[str, TopicState], dict[TopicPartition, PartitionState], set[str], set[str]]


def place(store: MemoryStore) -> Place:
    """Where it has ended, whoever wrote it."""
    topics = {name: found.state for name, found in store.topics.items()}
    states = {each: replace(found.state, controller_epoch=0) for each, found in store.partitions.items()}
    return topics, states, store.deleting, set(store.requests)


def after(store: MemoryStore, happens: Happening, dies_after: int | None) -> Place:
    """Where it ends if its controller dies after so many writes, if there are so many."""
    store = like(store)
    loop = controller(store)
    event = happens(store)
    store.dies_after = dies_after
    with suppress(ControllerDied):
        if event is not None:
            loop.handle(event, 0)
    store.dies_after = None
    take_over(store)
    return place(store)


@given(known=any_cluster(), happens=HAPPENINGS, dies_after=st.integers(0, 6))
def test_wherever_a_controller_dies_its_successor_ends_in_the_same_place(
    known: MemoryStore, happens: Happening, dies_after: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_store, "GROUPS_PER_MULTI", 1)  # each step is a write that it may die after
        assert after(known, happens, dies_after) == after(known, happens, None)


@given(known=any_cluster())
def test_a_take_over_of_a_cluster_in_which_nothing_happened_writes_nothing(known: MemoryStore) -> None:
    known.round_trips = 0
    take_over(known)
    assert known.round_trips == 0
