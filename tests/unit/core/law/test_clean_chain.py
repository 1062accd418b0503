"""I8: whether a broker that registers has lost nothing since its last registration."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from spark_replication.core.law.clean_chain import losses, next_epoch, proven_epoch
from spark_replication.core.law.unreadable import Unreadable
from spark_replication.model import BrokerEpoch, TopicPartition
from tests.unit.core.stories import FOO, FOO_ID, command, registration, state


@pytest.mark.parametrize(
    ("clean_shutdown", "started", "same", "trust", "proven"),
    [
        (7, None, False, False, 7),
        (7, 6, True, True, 7),
        (None, 6, True, True, 6),
        (None, 6, False, True, None),
        (None, 6, True, False, None),
        (None, None, True, True, None),
    ],
)
def test_the_files_prove(
    clean_shutdown: int | None, started: int | None, same: bool, trust: bool, proven: int | None
) -> None:
    assert proven == proven_epoch(clean_shutdown, started, same_boot_and_directory=same, trust_page_cache=trust)


class Report(msgspec.Struct, frozen=True):
    folder: str
    why: str = ""
    lossless: bool = True


def test_nothing_is_lost_where_every_log_is_whole_and_there() -> None:
    assigned = [command(state(2, [1, 2]))]
    assert losses([Report("foo-0"), Report("foo-1", "a torn tail")], assigned, [(FOO, FOO_ID)], 1) == []


@pytest.mark.parametrize(
    ("reports", "found", "broker", "lost"),
    [
        ([Report("foo-0", "a bad checksum", False)], [(FOO, FOO_ID)], 1, ["foo-0: a bad checksum"]),
        ([Report("foo-0", "", False)], [(FOO, FOO_ID)], 1, ["foo-0: its log ends below its checkpoint"]),
        ([], [], 1, ["foo-0 has no folder"]),
        ([], [(FOO, "another")], 3, ["foo-0 has no folder"]),  # a member of the ELR
        ([], [], 4, []),  # a replica that is not in sync may have lost all it had
    ],
)
def test_something_is_lost(
    reports: list[Report], found: list[tuple[TopicPartition, str]], broker: int, lost: list[str]
) -> None:
    assigned = [command(state(1, [1], elr=[3]), replicas=(1, 3, 4))]
    assert losses(reports, assigned, found, broker) == lost


LAST = BrokerEpoch(epoch=6, incarnation="a", clean_since=4)


@pytest.mark.parametrize(
    ("last", "incarnation", "continues", "after"),
    [
        (None, "b", None, BrokerEpoch(epoch=0, incarnation="b", clean_since=0)),
        (None, "b", 3, BrokerEpoch(epoch=0, incarnation="b", clean_since=0)),
        (LAST, "b", 6, BrokerEpoch(epoch=7, incarnation="b", clean_since=4)),
        (LAST, "b", 5, BrokerEpoch(epoch=7, incarnation="b", clean_since=7)),  # something happened in between
        (LAST, "b", None, BrokerEpoch(epoch=7, incarnation="b", clean_since=7)),
        (LAST, "a", 5, BrokerEpoch(epoch=7, incarnation="a", clean_since=4)),  # its own, whose answer was lost
        (LAST, "a", None, BrokerEpoch(epoch=7, incarnation="a", clean_since=7)),
    ],
)
def test_a_registration_continues_the_chain_or_begins_another(
    last: BrokerEpoch | None, incarnation: str, continues: int | None, after: BrokerEpoch
) -> None:
    wanted = replace(registration(1), incarnation=incarnation, continues=continues)
    assert next_epoch(last, wanted) == after


def test_a_missing_folder_whose_state_cannot_be_read_may_be_a_lost_replica() -> None:
    hidden = Unreadable(partitions=frozenset({FOO}), topics=frozenset({"bar"}))
    lost = losses([], [], [], 1, hidden)
    assert lost == ["foo-0 has no folder, and its state cannot be read"]
    assert losses([], [], [(FOO, FOO_ID)], 1, hidden) == []
