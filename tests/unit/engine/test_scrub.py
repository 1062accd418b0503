"""A broker reads its own logs, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_replication.engine.broker.scrub import PARTITIONS_PER_STEP_MAX, Scrub
from spark_replication.model import TopicPartition
from spark_replication.storage.format.batches import check_data
from tests.unit.transport.replicas import Broker, Brokers

NAMES = [TopicPartition("orders", number) for number in range(3)]
EVERYTHING = 1 << 20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """It leads three partitions of ten batches, twenty rows, each."""
    brokers = Brokers(tmp_path)
    broker = brokers.start(1)
    for name in NAMES:
        broker.command(name, 1, (1,))
        broker.produce(name, 10)
    yield broker
    brokers.close()


def scrub_of(broker: Broker) -> Scrub:
    scrub = Scrub(lambda: broker.partitions, check_data)
    scrub.begin()
    return scrub


def a_pass(scrub: Scrub, bytes_max: int) -> list[int]:
    """How many bytes each step has read."""
    found = []
    while (count := scrub.step(bytes_max)) is not None:
        found.append(count)
        assert len(found) < 1_000, "it ends"
    return found


def damage(broker: Broker, name: TopicPartition, offset: int) -> None:
    log = broker.replica(name).log
    found = log.find_stored(offset, bytes_max=1)
    assert found is not None
    place = (broker.folder(name) / f"{found.segment_base:020}.arrow").read_bytes().index(bytes(found.loaded().data))
    with (broker.folder(name) / f"{found.segment_base:020}.arrow").open("r+b") as file:
        file.seek(place + 40)
        (byte,) = file.read(1)
        file.seek(place + 40)
        file.write(bytes([byte ^ 1]))


def damaged(broker: Broker) -> list[tuple[TopicPartition, int]]:
    return [(name, each.base_offset) for name in NAMES for each in broker.partitions[name].damaged]


def test_a_pass_reads_everything_once(broker: Broker) -> None:
    stored = sum(segment.bytes for name in NAMES for segment in broker.replica(name).log.segments())
    heads = sum(len(broker.replica(name).log.segments()) for name in NAMES)
    read = a_pass(scrub_of(broker), EVERYTHING)
    assert (len(read), damaged(broker)) == (3, [])
    assert sum(read) < stored <= sum(read) + heads * 1_000, "all but the schemas"


def test_a_step_reads_no_more_than_it_may_or_one_batch(broker: Broker) -> None:
    whole = sum(a_pass(scrub_of(broker), EVERYTHING))
    batch = whole // 30
    read = a_pass(scrub_of(broker), 3 * batch)
    assert sum(read) == whole
    assert max(read) <= 3 * batch
    assert a_pass(scrub_of(broker), 1) == [batch] * 30


def test_all_damage_is_found(broker: Broker) -> None:
    for name, offset in [(NAMES[0], 0), (NAMES[1], 6), (NAMES[1], 10), (NAMES[2], 18)]:
        damage(broker, name, offset)
    a_pass(scrub_of(broker), 1_000)
    assert damaged(broker) == [(NAMES[0], 0), (NAMES[1], 6), (NAMES[1], 10), (NAMES[2], 18)]


def test_what_comes_while_a_partition_is_read_is_for_the_next_pass(broker: Broker) -> None:
    """Else a producer that is faster than the scrub would keep it from all other partitions."""
    scrub = scrub_of(broker)
    count = 0
    while scrub.step(1) is not None:
        count += 1
        broker.produce(NAMES[0], 2)
        assert count < 1_000, "it ends"
    assert count == 30


def test_what_is_cut_or_gone_meanwhile_is_no_damage(broker: Broker) -> None:
    scrub = scrub_of(broker)
    scrub.step(1)
    with broker.partitions[NAMES[0]] as replica:
        replica.log.truncate(0)
    del broker.partitions[NAMES[1]]
    assert len(a_pass(scrub, 1)) == 10
    assert broker.partitions[NAMES[0]].damaged == ()


def test_what_retention_takes_meanwhile_is_passed_over(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path)
    broker = brokers.start(1)
    broker.command(NAMES[0], 1, (1,))
    broker.produce(NAMES[0], 400)
    scrub = scrub_of(broker)
    scrub.step(1)
    with broker.partitions[NAMES[0]] as replica:
        replica.log.forget(800)
        start = replica.log.log_start
    assert 0 < start < 800
    assert len(a_pass(scrub, 1)) == (800 - start) // 2
    brokers.close()


def test_a_partition_that_another_pass_left_is_begun_anew(broker: Broker) -> None:
    scrub = scrub_of(broker)
    scrub.step(1)
    scrub.step(1)
    scrub.begin()
    assert len(a_pass(scrub, 1)) == 30


def test_idle_partitions_do_not_make_a_step_long(broker: Broker) -> None:
    empty = [TopicPartition("empty", number) for number in range(PARTITIONS_PER_STEP_MAX + 1)]
    for name in empty:
        broker.partitions[name] = broker.partitions[NAMES[0]]
    for name in NAMES:
        del broker.partitions[name]
    with broker.partitions[empty[0]] as replica:
        replica.log.truncate(0)
    assert a_pass(scrub_of(broker), EVERYTHING) == [0]
