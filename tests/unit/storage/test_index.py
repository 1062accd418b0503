"""Entries: 80 bytes each, checked before they are believed."""

from __future__ import annotations

from typing import Any

import pytest

from spark_replication.messages.records import BatchMetadata
from spark_replication.storage.format.entry_arrays import as_array
from spark_replication.storage.format.index import (
    DIGEST,
    ENTRY_BYTES,
    IndexEntry,
    Prefix,
    decode_entries,
    encode_entry,
    field_of_each,
    number_and_digest,
    numbered,
    place_of_offset,
    place_of_time,
    whole_prefix,
)


def entry(place: int, **changes: Any) -> IndexEntry:
    """The place-th of batches of 10 rows and 100 bytes, after a schema of 64 bytes."""
    fields = {
        "base_offset": 10 * place,
        "last_offset": 10 * place + 9,
        "position": 64 + 100 * place,
        "timestamp_ms": 5,
        "timestamp_max_ms": 1000 + place,
        "producer": 7,
        "sequence": place,
        "bytes": 100,
        "crc": 0xFFFFFFFF,
        "leader_epoch": 2,
        "producer_epoch": -1,
    }
    return IndexEntry(**{**fields, **changes})


def encoded(*entries: IndexEntry) -> bytes:
    return b"".join(map(encode_entry, entries))


def test_an_entry_reads_as_it_was_written_by_struct_and_by_numpy() -> None:
    data = encoded(entry(0), entry(1))
    assert len(data) == 2 * ENTRY_BYTES == 160
    assert list(decode_entries(data)) == [entry(0), entry(1)]
    assert [IndexEntry._make(row[:-1]) for row in as_array(data + b"torn").tolist()] == [entry(0), entry(1)]


@pytest.mark.parametrize("name", ["base_offset", "last_offset", "timestamp_ms", "leader_epoch"])
@pytest.mark.parametrize("kept", [bytes, bytearray, memoryview])
def test_a_field_is_read_of_all_entries_at_once(name: str, kept: type[bytes | bytearray | memoryview]) -> None:
    entries = [entry(place, timestamp_ms=place - 5, leader_epoch=place) for place in range(3)]
    assert field_of_each(kept(encoded(*entries)), name) == [getattr(each, name) for each in entries]
    assert field_of_each(kept(b""), name) == []


def test_zeros_are_no_entry() -> None:
    assert whole_prefix(bytes(80), base=0, epoch=0, data_bytes=0) == Prefix(0, "the checksum of entry 0 does not hold")


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], Prefix(0, "")),
        ([entry(0), entry(1), entry(2)], Prefix(3, "")),
        ([entry(1)], Prefix(0, "offsets do not continue at entry 0")),
        ([entry(0), entry(2, position=164)], Prefix(1, "offsets do not continue at entry 1")),
        ([entry(0), entry(1, last_offset=9)], Prefix(1, "the batch has no rows at entry 1")),
        ([entry(0, position=0)], Prefix(0, "positions do not continue at entry 0")),
        ([entry(0), entry(1, position=165)], Prefix(1, "positions do not continue at entry 1")),
        ([entry(0, leader_epoch=1)], Prefix(0, "the leader epoch falls at entry 0")),
        ([entry(0, leader_epoch=4), entry(1, leader_epoch=3)], Prefix(1, "the leader epoch falls at entry 1")),
        ([entry(0), entry(1), entry(2), entry(3)], Prefix(3, "the data ends before the batch does at entry 3")),
    ],
)
def test_the_prefix_that_holds(entries: list[IndexEntry], expected: Prefix) -> None:
    assert whole_prefix(encoded(*entries), base=0, epoch=2, data_bytes=364) == expected


def test_a_position_that_is_known_must_be_met() -> None:
    data = encoded(entry(0))
    assert whole_prefix(data, base=0, epoch=0, data_bytes=364, position=64).kept == 1
    assert whole_prefix(data, base=0, epoch=0, data_bytes=364, position=72).kept == 0


@pytest.mark.parametrize(("offset", "place"), [(0, 0), (9, 0), (10, 1), (29, 2), (30, 3)])
def test_the_place_of_an_offset(offset: int, place: int) -> None:
    assert place_of_offset(encoded(*map(entry, range(3))), offset) == place


@pytest.mark.parametrize(("timestamp_ms", "place"), [(0, 0), (1000, 0), (1001, 1), (1002, 2), (1003, 3)])
def test_the_place_of_a_time(timestamp_ms: int, place: int) -> None:
    assert place_of_time(encoded(*map(entry, range(3))), timestamp_ms) == place


@pytest.mark.parametrize("sequence", [0, 7, (1 << 32) - 1])
@pytest.mark.parametrize("digest", [0, DIGEST, 2 * DIGEST - 1])
def test_a_number_comes_back_with_the_digest_above_it(sequence: int, digest: int) -> None:
    assert number_and_digest(numbered(sequence, digest)) == (sequence, digest)


@pytest.mark.parametrize("sequence", [-1, 1 << 32, (1 << 62) - 1])
def test_a_number_without_a_digest_may_be_larger(sequence: int) -> None:
    assert number_and_digest(numbered(sequence, 0)) == (sequence, 0)


def test_a_number_that_leaves_no_room_for_a_digest_is_refused() -> None:
    with pytest.raises(ValueError, match="begin another epoch"):
        BatchMetadata(producer=1, sequence=1 << 32, any_order=True)
