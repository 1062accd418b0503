"""A replica whose disk has lost a batch copies it from another one."""

from __future__ import annotations

import pytest

from spark_replication.engine.broker.mending import Tried, mend
from spark_replication.engine.replica import damage
from spark_replication.errors import (
    OffsetOutOfRange,
    ReplicationError,
    StorageFailed,
    UnknownTopicOrPartition,
)
from spark_replication.messages.mending import CopyBatch
from spark_replication.model import BrokerId, TopicPartition
from spark_replication.transport.flight.batch_copies import copy_of
from tests.unit.transport.replicas import Broker, Brokers
from tests.waiting import eventually

ORDERS = TopicPartition("orders", 0)
COUNT = 100  # batches, of two rows each


@pytest.fixture
def three(brokers: Brokers) -> dict[BrokerId, Broker]:
    """Broker 1 leads, and all have the same 200 rows."""
    started = {number: brokers.start(number) for number in (1, 2, 3)}
    for broker in started.values():
        broker.command(ORDERS, 1, (1, 2, 3))
    answers = started[1].produce(ORDERS, COUNT)
    eventually(lambda: len(answers) == COUNT, "all are acknowledged")
    return started


def spoil(broker: Broker, offset: int) -> None:
    """A bit of the batch at this offset."""
    log = broker.replica(ORDERS).log
    (before,) = [each for each in [log.find_stored(offset, bytes_max=1)] if each is not None]
    path = broker.folder(ORDERS) / f"{before.segment_base:020}.arrow"
    content = bytearray(path.read_bytes())
    content[content.index(bytes(before.loaded().data)) + 40] ^= 1
    path.write_bytes(content)


def spoilt(broker: Broker, *offsets: int) -> None:
    for offset in offsets:
        spoil(broker, offset)
    with broker.partitions[ORDERS] as replica:
        assert len(replica.damage.look(0, 2 * COUNT)) == len(offsets)


class Copies:
    """Asks brokers of this process."""

    def __init__(self, brokers: dict[BrokerId, Broker]) -> None:
        self.brokers = brokers
        self.asked: list[BrokerId] = []

    def copy(self, broker: BrokerId, wanted: CopyBatch) -> bytes:
        self.asked.append(broker)
        return copy_of(self.brokers[broker].partition, wanted).data


def wanted(broker: Broker, offset: int) -> CopyBatch:
    spoilt(broker, offset)
    (found,) = broker.partitions[ORDERS].damaged
    return CopyBatch(
        topic="orders", partition=0, topic_id="id", base_offset=offset, last_offset=found.last_offset, crc=found.crc
    )


@pytest.mark.parametrize("broker", [1, 2])
def test_leaders_and_followers_mend_what_their_disk_has_lost(three: dict[BrokerId, Broker], broker: BrokerId) -> None:
    before = three[broker].files(ORDERS)
    spoilt(three[broker], 0, 60, 198)
    copies = Copies(three)
    tried = list(mend(three[broker].partitions[ORDERS], [3], copies.copy))
    assert [(each.batch.base_offset, each.source, each.why) for each in tried] == [
        (0, 3, ""),
        (60, 3, ""),
        (198, 3, ""),
    ]
    assert three[broker].partitions[ORDERS].damaged == ()
    assert three[broker].files(ORDERS) == before


def test_the_next_replica_is_asked_if_one_does_not_have_it(three: dict[BrokerId, Broker]) -> None:
    spoilt(three[1], 60)
    spoil(three[2], 60)
    copies = Copies(three)
    (tried,) = mend(three[1].partitions[ORDERS], [2, 3], copies.copy)
    assert (tried.source, copies.asked) == (3, [2, 3])
    assert [each.base_offset for each in three[2].partitions[ORDERS].damaged] == [60], "it has found its own"


def test_what_nobody_has_stays_damaged_and_says_why(three: dict[BrokerId, Broker]) -> None:
    spoilt(three[1], 60)
    spoil(three[2], 60)
    (found,) = three[1].partitions[ORDERS].damaged
    assert list(mend(three[1].partitions[ORDERS], [], Copies(three).copy)) == [
        Tried(found, None, "no other replica is on a registered broker")
    ]
    (tried,) = mend(three[1].partitions[ORDERS], [2], Copies(three).copy)
    assert tried.why.startswith("with the copy of broker 2: KAFKA_STORAGE_ERROR: orders-0 is damaged on this broker's")
    assert three[1].partitions[ORDERS].damaged == (found,)


def test_other_bytes_mend_nothing(three: dict[BrokerId, Broker]) -> None:
    spoilt(three[1], 60)
    before = three[1].files(ORDERS)
    (tried,) = mend(three[1].partitions[ORDERS], [2], lambda _broker, asked: b"x" * 300)
    assert (tried.source, three[1].files(ORDERS)) == (None, before)


def test_what_reads_well_again_needs_nobody(three: dict[BrokerId, Broker]) -> None:
    whole = (three[1].folder(ORDERS) / f"{0:020}.arrow").read_bytes()
    spoilt(three[1], 60)
    (three[1].folder(ORDERS) / f"{0:020}.arrow").write_bytes(whole)
    assert list(mend(three[1].partitions[ORDERS], [2], Copies(three).copy)) == []
    assert three[1].partitions[ORDERS].damaged == ()


def test_a_disk_that_takes_nothing_hands_over(three: dict[BrokerId, Broker]) -> None:
    spoilt(three[1], 60)
    (found,) = three[1].partitions[ORDERS].damaged
    with three[1].partitions[ORDERS] as replica:
        replica.log.close()  # as a disk that refuses: nothing is written any more
        with pytest.raises(StorageFailed):
            replica.mend(found, b"")
        assert replica.disk_trouble.is_recent
    assert three[1].partitions[ORDERS].damaged == (found,)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"topic_id": "another"}, UnknownTopicOrPartition),
        ({"partition": 1}, UnknownTopicOrPartition),
        ({"base_offset": 200, "last_offset": 201}, OffsetOutOfRange),
        ({"base_offset": 201, "last_offset": 202}, OffsetOutOfRange),
        ({"base_offset": 61}, OffsetOutOfRange),
        ({"last_offset": 62}, OffsetOutOfRange),
        ({"crc": 1}, OffsetOutOfRange),
    ],
)
def test_only_that_very_batch_is_given(
    three: dict[BrokerId, Broker], changed: dict[str, object], error: type[ReplicationError]
) -> None:
    asked = wanted(three[1], 60)
    assert copy_of(three[2].partition, asked).data != b""
    given = {name: getattr(asked, name) for name in asked.__struct_fields__} | changed
    with pytest.raises(error):
        copy_of(three[2].partition, CopyBatch(**given))


def test_a_copy_that_is_damaged_itself_is_not_given(three: dict[BrokerId, Broker]) -> None:
    asked = wanted(three[1], 60)
    spoil(three[2], 60)
    with pytest.raises(StorageFailed, match="is damaged on this broker's disk"):
        copy_of(three[2].partition, asked)
    assert [each.base_offset for each in three[2].partitions[ORDERS].damaged] == [60]


def test_what_is_known_of_damage_is_bounded(three: dict[BrokerId, Broker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "DAMAGED_MAX", 2)
    spoilt(three[1], 0, 60, 120)
    assert [each.base_offset for each in three[1].partitions[ORDERS].damaged] == [0, 60]


def test_damage_that_was_cut_off_is_none(three: dict[BrokerId, Broker]) -> None:
    spoilt(three[1], 60, 120)
    with three[1].partitions[ORDERS] as replica:
        replica.log.truncate(100)
        assert [each.base_offset for each in replica.damage.look_again()] == [60]


# A follower meets what its leader's disk has lost


def test_a_follower_that_gets_damaged_bytes_makes_its_leader_look(brokers: Brokers) -> None:
    leader, follower = brokers.start(1), brokers.start(2)
    leader.command(ORDERS, 1, (1,))
    leader.produce(ORDERS, COUNT)
    whole = leader.files(ORDERS)
    spoil(leader, 60)
    assert leader.partitions[ORDERS].damaged == ()
    follower.command(ORDERS, 1, (1, 2))
    leader.command(ORDERS, 1, (1, 2), epoch=1)
    follower.command(ORDERS, 1, (1, 2), epoch=1)
    eventually(lambda: leader.partitions[ORDERS].damaged, "the leader has found it")
    (found,) = leader.partitions[ORDERS].damaged
    assert found.base_offset == 60
    for name, content in whole.items():
        (leader.folder(ORDERS) / name).write_bytes(content)
    eventually(lambda: follower.files(ORDERS) == whole, "the follower goes on once it is mended")
