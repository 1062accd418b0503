"""C4: a controller may die after any of its writes; its successor ends where it would have ended itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from spark_replication.core.controller.events import Event, PartitionsRead, Requested, TookOver
from spark_replication.core.controller.plan import Reply
from spark_replication.core.controller.widening import incomparable
from spark_replication.core.law.writes import IsrCommitted, IsrWrite
from spark_replication.core.replica.isr import changed
from spark_replication.engine.controller.controller_loop import ControllerLoop
from spark_replication.model import BrokerId, PartitionState, TopicPartition, TopicState
from spark_replication.ports import NoMirror, NoTables
from spark_replication.sim.scenarios.zookeeper_at_once import ControllerDied, ZooKeeperAtOnce
from spark_replication.sim.world.topic_tables import anything_fits
from spark_replication.zk import paths
from spark_replication.zk.controller.admin_requests import asked_by, read_requests
from spark_replication.zk.operations import Committed, Create
from tests.unit.core.stories import topic, zookeeper
from tests.unit.engine.ports_in_memory import Sent

BROKERS = (1, 2, 3, 4)

# What happens to ZooKeeper, and what the controller hears of it; nothing, where it cannot happen now.
Happening = Callable[[ZooKeeperAtOnce], Event | None]


def controller(store: ZooKeeperAtOnce) -> ControllerLoop:
    return ControllerLoop(
        store.load(),
        store=store.session(operations_max=1),  # each group is a multi() that it may die after
        sender=Sent(),
        mirror=NoMirror(),
        sealer=NoTables(),
        answer=_no_answer,
        deposed=lambda: None,
        now_ms=0,
        compare_schemas=incomparable,
        fits_table=anything_fits,
    )


def _no_answer(request: int, reply: Reply) -> None:
    """Nobody waits for one."""


def take_over(store: ZooKeeperAtOnce) -> ControllerLoop:
    loop = controller(store)
    loop.handle(TookOver(), 0)
    return loop


def register(broker: BrokerId, store: ZooKeeperAtOnce, *, clean: bool) -> Event:
    store.register(broker, clean=clean, rack=None)
    return store.brokers_read()


def lose(broker: BrokerId, store: ZooKeeperAtOnce) -> Event | None:
    return store.brokers_read() if store.remove_registration(broker) else None


def shut_down(broker: BrokerId, store: ZooKeeperAtOnce) -> Event | None:
    if broker not in store.registered:
        return None
    store.shut_down(broker)
    return store.brokers_read()


def write_isr(wanted: frozenset[BrokerId], number: int, store: ZooKeeperAtOnce) -> Event | None:
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
    if isr == before.isr or not isinstance(store.change_isr(write), IsrCommitted):
        return None
    return PartitionsRead({partition: store.partitions[partition]})


def request(path: str, data: bytes, store: ZooKeeperAtOnce) -> Event | None:
    folder = path.rpartition("/")[0]
    if store.tree.read(folder) is None:
        store.multi([Create(folder)])
    stored = store.multi([Create(path, data)])
    return Requested(asked=asked_by(path, data), path=path) if isinstance(stored, Committed) else None


REPLICAS = st.lists(st.sampled_from(BROKERS), min_size=1, max_size=3, unique=True).map(tuple)
BROKER, SOME = st.sampled_from(BROKERS), st.frozensets(st.sampled_from(BROKERS))
NUMBERS = st.integers(0, 2)
ASKED: st.SearchStrategy[tuple[str, bytes]] = st.one_of(
    st.builds(lambda number, to: (f"{paths.REASSIGNED}/foo/{number}", msgspec.json.encode(to)), NUMBERS, REPLICAS),
    st.builds(lambda number, on: (f"{paths.ADDED}/foo/{number}", msgspec.json.encode(on)), NUMBERS, REPLICAS),
    st.builds(lambda number: (f"{paths.REMOVED}/foo/{number}", b""), NUMBERS),
    st.just((paths.deletion_mark("foo"), b"")),
    st.sampled_from([(paths.PREFERRED_ELECTION, b""), (paths.PREFERRED_ELECTION, b'["foo-0"]')]),
)
HAPPENINGS: st.SearchStrategy[Happening] = st.one_of(
    st.builds(lambda broker: partial(lose, broker), BROKER),
    st.builds(lambda broker, clean: partial(register, broker, clean=clean), BROKER, st.booleans()),
    st.builds(lambda broker: partial(shut_down, broker), BROKER),
    st.builds(lambda wanted, number: partial(write_isr, wanted, number), SOME, NUMBERS),
    st.builds(lambda asked: partial(request, *asked), ASKED),
)


@st.composite
def any_cluster(draw: st.DrawFn) -> ZooKeeperAtOnce:
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


Place = tuple[dict[str, TopicState], dict[TopicPartition, PartitionState], set[str]]


def place(store: ZooKeeperAtOnce) -> Place:
    """Where it has ended, whoever wrote it."""
    topics = {name: found.state for name, found in store.topics.items()}
    states = {each: replace(found.state, controller_epoch=0) for each, found in store.partitions.items()}
    return topics, states, {each.path for each in read_requests(store.tree)}


def after(store: ZooKeeperAtOnce, happens: Happening, dies_after: int | None) -> Place:
    """Where it ends if its controller dies after so many writes, if there are so many."""
    store = copy.deepcopy(store)
    loop = controller(store)
    event = happens(store)
    store.dies_after = dies_after
    with suppress(ControllerDied):
        if event is not None:
            loop.handle(event, 0)
    store.dies_after = None
    take_over(store)
    return place(store)


@pytest.mark.slow
@given(known=any_cluster(), happens=HAPPENINGS, dies_after=st.integers(0, 6))
def test_wherever_a_controller_dies_its_successor_ends_in_the_same_place(
    known: ZooKeeperAtOnce, happens: Happening, dies_after: int
) -> None:
    assert after(known, happens, dies_after) == after(known, happens, None)


@given(known=any_cluster())
def test_a_take_over_of_a_cluster_in_which_nothing_happened_writes_nothing(known: ZooKeeperAtOnce) -> None:
    known.round_trips = 0
    take_over(known)
    assert known.round_trips == 0
