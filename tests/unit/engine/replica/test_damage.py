"""A replica whose disk does not give back what was written: what is damage, and what is trouble with the disk."""

from __future__ import annotations

import pytest

from spark_replication.engine.broker.mending import Tried, mend
from spark_replication.engine.broker.scrub import Scrub
from spark_replication.engine.replica.partition import Partition, Turns
from spark_replication.errors import CorruptLog, StorageFailed
from spark_replication.messages.mending import CopyBatch
from spark_replication.model import BrokerId
from spark_replication.ports import DamagedBatch, LogSlice
from spark_replication.sim.world.one_at_a_time import OneAtATime, at_once
from tests.unit.core.stories import FOO, state
from tests.unit.engine.replica.story import DISK_RETRY_MS, Story


def lost(offset: int) -> DamagedBatch:
    return DamagedBatch(
        base_offset=offset, last_offset=offset, file="a.arrow", position=0, bytes=1, crc=0, why="it is another"
    )


@pytest.fixture
def story() -> Story:
    """It leads, with the records 0 to 3, and 2 is in sync."""
    story = Story().told()
    story.produce(4)
    for follower in (2, 3):
        story.fetch(follower, 4)
    return story


def damaged(story: Story) -> list[DamagedBatch]:
    return list(story.loop.damage.batches)


def partition_of(story: Story) -> Partition:
    return Partition(story.loop, Turns(OneAtATime(), at_once))


def test_damage_stays_whatever_happens_to_the_role_and_however_long_it_takes(story: Story) -> None:
    story.log.lost = [lost(1)]
    found = story.log.find(0, bytes_max=9, end=4)
    assert found is not None
    with pytest.raises(
        StorageFailed, match=r"foo-0 is damaged on this broker's disk, at offsets 1 to 1, at byte 0 of a"
    ):
        story.loop.damage.require_none(found)
    story.loop.tick(10 * DISK_RETRY_MS)
    story.told(state(2, [1, 2], leader_epoch=5), 8)
    story.loop.tick(20 * DISK_RETRY_MS)
    assert damaged(story) == [lost(1)]
    assert story.failures.told == [], "nothing is decided for it"
    story.log.lost = []
    assert story.loop.damage.look_again() == ()


def test_a_look_says_of_its_own_range_what_is_damaged_there_and_nothing_of_others(story: Story) -> None:
    story.log.lost = [lost(1), lost(3)]
    assert story.loop.damage.look(3, 4) == (lost(3),)
    assert story.loop.damage.look(0, 3) == (lost(1),)
    assert damaged(story) == [lost(1), lost(3)]
    story.log.lost = [lost(3)]
    assert story.loop.damage.look(0, 2) == ()
    assert damaged(story) == [lost(3)]


@pytest.mark.parametrize("operation", ["read", "fetch", "scrub", "mend", "look"])
def test_a_disk_that_does_not_even_give_back_the_index_is_in_trouble_as_one_that_refuses_a_write(
    story: Story, operation: str
) -> None:
    """Another replica is to lead: nobody could read here."""
    story.log.lost = [lost(1)]
    story.loop.damage.look(0, 4)
    story.log.failing = frozenset({"mend" if operation == "mend" else "find"})
    partition = partition_of(story)
    match operation:
        case "read":
            with pytest.raises(StorageFailed):
                story.loop.read(0, bytes_max=1, to=None)
        case "fetch":
            story.fetch(3, 0)
            assert story.answer(3).error == StorageFailed.code
        case "scrub":
            scrub = Scrub(lambda: {FOO: partition}, lambda _: None)
            scrub.begin()
            assert scrub.step(9) is None
        case "mend":
            with pytest.raises(StorageFailed):
                story.loop.mend(lost(1), b"x")
        case _:
            assert list(mend(partition, [2], given)) == []
    assert story.failures.told == [FOO]
    assert story.loop.disk_trouble.is_recent
    assert damaged(story) == [lost(1)]


def given(_broker: BrokerId, _wanted: CopyBatch) -> bytes:
    return b"x"


def test_a_scrub_that_reads_badly_looks_with_the_partition(story: Story) -> None:
    def refused(_records: LogSlice) -> None:
        raise CorruptLog("the batch at offset 1 does not have its CRC-32C")

    partition = partition_of(story)
    scrub = Scrub(lambda: {FOO: partition}, refused)
    scrub.begin()
    scrub.step(9)
    assert damaged(story) == [], "it was cut meanwhile, say"
    story.log.lost = [lost(1)]
    scrub.begin()
    scrub.step(9)
    assert damaged(story) == [lost(1)]


def test_what_is_mended_is_damaged_no_longer(story: Story) -> None:
    story.log.lost = [lost(1), lost(3)]
    story.loop.damage.look(0, 4)
    assert list(mend(partition_of(story), [2, 3], given)) == [Tried(lost(1), 2), Tried(lost(3), 2)]
    assert (damaged(story), story.failures.told) == ([], [])
