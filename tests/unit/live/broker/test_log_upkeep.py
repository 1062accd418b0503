"""What a broker does about its own disk, besides what it is asked for."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest

from spark_replication.config import settings_from
from spark_replication.core.replica.replica import Me
from spark_replication.engine.broker.broker_loop import BrokerLoop
from spark_replication.engine.broker.mending import sources
from spark_replication.engine.replica.partition import Partition
from spark_replication.errors import BrokerNotAvailable, NotController, StorageFailed
from spark_replication.live.broker import log_upkeep
from spark_replication.live.broker.log_upkeep import LogUpkeep, Others
from spark_replication.messages.descriptions import Metadata, TopicMetadata
from spark_replication.messages.mending import CopyBatch, DiskDamage
from spark_replication.model import BrokerId, Epoch, Registration, ReplicaOf, TopicConfig, TopicPartition
from spark_replication.transport.flight.batch_copies import copy_of
from spark_replication.transport.security.security import NO_SECURITY
from tests.unit.core.stories import command, registration, state
from tests.unit.transport.replicas import Broker, Brokers
from tests.waiting import eventually

ORDERS = TopicPartition("orders", 0)
REPLICA = ReplicaOf(ORDERS, "id")
COUNT = 10  # batches of two rows each


class Loop:
    """What LogUpkeep asks of a BrokerLoop, of broker 1: its leader is 2, and 4 is not registered."""

    def __init__(self, replicas: dict[TopicPartition, Partition]) -> None:
        self.replicas = replicas
        self.me: Me | None = Me(1, 7, 0)
        self.brokers: Mapping[BrokerId, Registration] = {each: registration(each) for each in (1, 2, 3, 5)}
        self.state = state(2, [1, 2, 5])

    def metadata(self, topics: object, controller: None, only: object) -> Metadata:
        known = command(self.state, 7, replicas=(1, 3, 4, 5, 2), partition=ORDERS)
        topic = TopicMetadata(name="orders", topic_id="id", config=TopicConfig(), partitions=(known,))
        return Metadata(cluster_id="", brokers={}, topics=(topic,))


class Story:
    def __init__(self, broker: Broker, other: Broker, bytes_per_second: int = 1 << 30) -> None:
        self.broker, self.other = broker, other
        self.loop = Loop(broker.partitions)
        self.has_controller = self.lives = True
        self.told: list[tuple[Epoch, dict[ReplicaOf, DiskDamage]]] = []
        self.asked: list[BrokerId] = []
        settings = settings_from({"log.scrub.bytes.per.second": bytes_per_second})
        self.upkeep = LogUpkeep(cast("BrokerLoop", self.loop), self._copy, self._tell, settings=settings)

    def _copy(self, broker: BrokerId, wanted: CopyBatch) -> bytes:
        self.asked.append(broker)
        if not self.lives:
            raise BrokerNotAvailable("nobody answers")
        return copy_of(self.other.partition, wanted).data

    def _tell(self, epoch: Epoch, found: dict[ReplicaOf, DiskDamage]) -> None:
        if not self.has_controller:
            raise NotController("there is none")
        self.told.append((epoch, dict(found)))

    def spoil(self, *offsets: int) -> None:
        for offset in offsets:
            found = self.broker.replica(ORDERS).log.find_stored(offset, bytes_max=1)
            assert found is not None
            path = self.broker.folder(ORDERS) / f"{0:020}.arrow"
            content = bytearray(path.read_bytes())
            content[content.index(bytes(found.loaded().data)) + 40] ^= 1
            path.write_bytes(content)

    def meet(self) -> None:
        """As a reader does."""
        with self.broker.partitions[ORDERS] as replica:
            replica.damage.look(0, 2 * COUNT)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    """Not started: the tests say when it looks."""
    brokers = Brokers(tmp_path)
    found = Story(*two(brokers))
    yield found
    brokers.close()


def two(brokers: Brokers) -> tuple[Broker, Broker]:
    """With the same log."""
    started = brokers.start(1), brokers.start(2)
    for broker in started:
        broker.command(ORDERS, broker.me.broker, (broker.me.broker,))
        broker.produce(ORDERS, COUNT)
    assert started[0].files(ORDERS) == started[1].files(ORDERS)
    return started


def test_other_replicas_are_asked_in_the_order_in_which_they_know_most(story: Story) -> None:
    assert sources(cast("BrokerLoop", story.loop), ORDERS) == [2, 5, 3]
    assert sources(cast("BrokerLoop", story.loop), TopicPartition("orders", 1)) == []
    story.loop.me = None
    assert sources(cast("BrokerLoop", story.loop), ORDERS) == []


def test_what_somebody_met_is_mended_and_told(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    whole = story.other.files(ORDERS)
    story.spoil(4, 10)
    story.upkeep._look()
    assert (story.told, story.broker.files(ORDERS) == whole) == ([], False), "nobody has met it"
    story.meet()
    story.upkeep._look()
    assert story.broker.files(ORDERS) == whole
    assert [(epoch, found[REPLICA].batches, found[REPLICA].mended) for epoch, found in story.told] == [
        (7, 2, 0),
        (7, 0, 2),
    ]
    assert story.told[-1][1][REPLICA].words.startswith("offsets 10 to 11, at byte ")
    errors = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert len(errors) == 2
    assert all(
        str(story.broker.folder(ORDERS)) in each and "orders-0 is damaged on this disk" in each for each in errors
    )
    assert [each.levelname for each in caplog.records] == ["ERROR", "ERROR", "WARNING", "WARNING"]
    story.upkeep._look()
    assert (len(story.told), len(caplog.records)) == (2, 4), "it is told once"


def test_what_cannot_be_mended_is_tried_again_and_said_once(
    story: Story, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.lives = False
    story.spoil(4)
    story.meet()
    story.upkeep._look()
    assert story.asked == [2, 5, 3]
    story.upkeep._look()
    assert story.asked == [2, 5, 3], "not at once"
    monkeypatch.setattr(log_upkeep, "REPEAT_S", 0.0)
    story.upkeep._mend_at_s = 0.0
    story.upkeep._look()
    assert story.asked == [2, 5, 3] * 2
    stays = [each for each in caplog.messages if "stays damaged" in each]
    assert len(stays) == 1
    assert "with the copy of broker 3: BROKER_NOT_AVAILABLE: nobody answers" in stays[0]
    assert [found[REPLICA].batches for _, found in story.told] == [1]
    story.lives = True
    story.upkeep._look()
    assert [(found[REPLICA].batches, found[REPLICA].mended) for _, found in story.told] == [(1, 0), (0, 1)]


def test_new_damage_is_mended_at_once_though_other_damage_stays(story: Story) -> None:
    story.spoil(4)
    story.meet()
    story.lives = False
    story.upkeep._look()
    story.lives = True
    story.spoil(10)
    story.meet()
    story.upkeep._look()
    assert story.broker.partitions[ORDERS].damaged == ()


def test_a_controller_that_did_not_hear_is_told_again(
    story: Story, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_upkeep, "RETRY_S", 0.0)
    story.has_controller = False
    story.spoil(4)
    story.meet()
    story.upkeep._look()
    story.upkeep._look()
    assert (story.told, story.broker.partitions[ORDERS].damaged) == ([], ())
    assert len([each for each in caplog.messages if "does not know how this disk is" in each]) == 1
    story.has_controller = True
    story.upkeep._look()
    assert [(epoch, found[REPLICA].mended) for epoch, found in story.told] == [(7, 1)]


def test_that_damage_was_cut_off_is_told_until_it_is_heard(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_upkeep, "RETRY_S", 0.0)
    story.lives = False
    story.spoil(4)
    story.meet()
    story.upkeep._look()
    with story.broker.partitions[ORDERS] as replica:
        replica.log.truncate(0)
        replica.damage.look_again()
    story.has_controller = False
    story.upkeep._look()
    story.has_controller = True
    story.upkeep._look()
    assert [len(found) for _, found in story.told] == [1, 0]


def test_a_controller_may_be_new_so_damage_is_told_again_and_again(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_upkeep, "TELL_AGAIN_S", 0.0)
    story.upkeep._look()
    assert story.told == []
    story.spoil(4)
    story.meet()
    for _ in range(3):
        story.upkeep._look()
    assert [found[REPLICA].mended for _, found in story.told] == [0, 1, 1, 1]


def test_the_next_registration_is_told_what_the_last_one_was(story: Story) -> None:
    story.spoil(4)
    story.meet()
    story.upkeep._look()
    story.loop.me = None
    story.upkeep._look()
    story.loop.me = Me(1, 8, 0)
    story.upkeep._look()
    assert [epoch for epoch, _ in story.told] == [7, 7, 8]


def test_a_disk_that_refuses_is_told_of_until_it_is_to_be_tried_again(story: Story) -> None:
    with story.broker.partitions[ORDERS] as replica:
        replica.disk_trouble.refused(None, StorageFailed("it is full"))
    story.upkeep._look()
    story.upkeep._look()
    assert story.told == [(7, {REPLICA: DiskDamage(batches=0, mended=0, words="", refuses=True)})]
    with story.broker.partitions[ORDERS] as replica:
        for now_ms in (1, 1 + replica._own.settings.disk_retry_ms):
            replica.tick(now_ms)
    story.upkeep._look()
    assert story.told[1:] == [(7, {})]


def test_much_damage_is_few_lines(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    story.spoil(*range(0, 2 * COUNT, 2))
    story.meet()
    story.lives = False
    story.upkeep._look()
    lines = [each for each in caplog.messages if "is damaged" in each]
    assert len(lines) == log_upkeep.LINES_MAX + 1
    assert lines[-1] == f"orders-0 is damaged in {COUNT - log_upkeep.LINES_MAX} more batches"


@pytest.mark.parametrize(("bytes_per_second", "is_mended"), [(1 << 30, True), (0, False)])
def test_a_scrub_finds_what_nobody_meets_unless_it_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_per_second: int, is_mended: bool
) -> None:
    monkeypatch.setattr(log_upkeep, "LOOK_S", 0.05)
    brokers = Brokers(tmp_path)
    story = Story(*two(brokers), bytes_per_second=bytes_per_second)
    story.spoil(4)
    looks = Counted(story.loop.replicas)
    story.loop.replicas = looks
    story.upkeep.start()
    eventually(lambda: looks.count > 6 or story.told, "it has looked several times")
    story.upkeep.close()
    assert bool(story.told) == is_mended
    brokers.close()


class Counted(dict[TopicPartition, Partition]):
    """How often somebody has looked at all of them."""

    count = 0

    def copy(self) -> dict[TopicPartition, Partition]:
        self.count += 1
        return super().copy()


def test_it_looks_no_more_often_for_all_the_steps_of_a_fast_scrub(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    monkeypatch.setattr(story.upkeep, "_look", lambda: looks.append(time.monotonic()))
    story.upkeep._scrub.begin()
    for _ in range(3):
        story.upkeep._scrub_at_s = 0.0
        story.upkeep._turn()
    assert looks == [], "it began a moment ago"
    story.upkeep._look_at_s = 0.0
    story.upkeep._turn()
    story.upkeep._turn()
    assert len(looks) == 1


def test_partitions_may_come_while_it_looks(story: Story) -> None:
    """Python collects garbage as soon as it likes, and lets other threads go on meanwhile."""
    partition = story.loop.replicas[ORDERS]
    story.loop.replicas |= {TopicPartition("others", number): partition for number in range(100)}

    def comes(_phase: str, _about: object) -> None:
        story.loop.replicas[TopicPartition("new", len(story.loop.replicas))] = partition

    before = gc.get_threshold()
    gc.callbacks.append(comes)
    gc.set_threshold(1)
    try:
        story.upkeep._look()
        story.upkeep._scrub.begin()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(comes)
    assert len(story.loop.replicas) > 101


def test_a_slow_scrub_rests_between_its_steps(story: Story) -> None:
    story.upkeep._bytes_per_second = 1_000
    story.upkeep._scrub.begin()
    story.upkeep._step()
    size = sum(segment.bytes for segment in story.broker.replica(ORDERS).log.segments())
    assert 0.1 < story.upkeep._rest_s() <= log_upkeep.LOOK_S, f"{size} bytes take seconds"


def test_nobody_is_asked_or_told_who_is_not_there() -> None:
    loop = cast("BrokerLoop", Loop({}))
    others = Others(1, loop, NO_SECURITY, lambda: None, settings_from({}))
    wanted = CopyBatch(topic="orders", partition=0, topic_id="id", base_offset=0, last_offset=0, crc=0)
    with pytest.raises(BrokerNotAvailable, match="broker 4 is not registered"):
        others.copy(4, wanted)
    with pytest.raises(NotController):
        others.tell(7, {})
