"""What `log dump` shows of a log's files, and what `log verify` finds wrong with them, without touching them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_replication.storage.format.index import ENTRY_BYTES
from tests.unit.admin.conftest import Run
from tests.unit.storage.storage_stories import files_of, log_in, prepared

BATCHES = 6  # of two rows; two to a segment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition's folder in a broker's directory: three segments, the second leader epoch from the third batch on."""
    made = tmp_path / "broker-1" / "orders-0.id"
    made.mkdir(parents=True)
    (tmp_path / "broker-1" / "meta.json").write_text("{}")
    size = len(prepared(0).message)
    log = log_in(made, segment_bytes=2 * size, directory=made.parent)
    for number in range(BATCHES):
        log.begin_epoch(3 if number < 2 else 5)
        log.append(prepared(2 * number), leader_epoch=3 if number < 2 else 5, timestamp_ms=number)
    log.checkpoint(10)
    log.close()
    return made


def change(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def segments(folder: Path, suffix: str) -> list[Path]:
    return sorted(folder.glob(f"*{suffix}"))


def test_a_sound_log_is_verified_and_left_as_it_is(run: Run, folder: Path) -> None:
    before = files_of(folder)
    for path in (folder, folder.parent):
        ran = run("log", "verify", path, "--format", "json")
        (found,) = json.loads(ran.out)
        assert (ran.exit, ran.err) == (0, "")
        assert found["folder"] == str(folder)
        sound = (found["segments"], found["batches"], found["start"], found["end"], found["problems"])
        assert sound == (len(segments(folder, ".arrow")), BATCHES, 0, 12, 0)
    assert files_of(folder) == before
    assert not (folder.parent / "lock").exists()


def test_a_copy_for_a_start_that_was_never_stored_is_no_part_of_the_log(run: Run, folder: Path) -> None:
    """As a broker leaves it that was killed in the midst of making it."""
    for base in (2, 6):
        for suffix in (".arrow", ".index"):
            (folder / f"{base:020}{suffix}").write_bytes(b"torn")
    ran = run("log", "verify", folder, "--format", "json")
    (found,) = json.loads(ran.out)
    assert (ran.exit, found["batches"], found["end"], found["problems"]) == (0, BATCHES, 12, 0)


def test_what_a_crash_has_torn_behind_the_last_entry_is_no_damage(run: Run, folder: Path) -> None:
    for path in (segments(folder, ".arrow")[-1], segments(folder, ".index")[-1]):
        path.write_bytes(path.read_bytes() + b"torn")
    assert run("log", "verify", folder).exit == 0


def flip_data(folder: Path) -> None:
    path = segments(folder, ".arrow")[1]
    change(path, path.stat().st_size - 8, b"\xff")


def flip_entry(folder: Path) -> None:
    change(segments(folder, ".index")[1], ENTRY_BYTES, b"\xff")


def flip_first_entry(folder: Path) -> None:
    change(segments(folder, ".index")[1], 16, b"\xff" * 8)


def cut_data(folder: Path) -> None:
    path = segments(folder, ".arrow")[1]
    path.write_bytes(path.read_bytes()[:-8])


def more_data(folder: Path) -> None:
    path = segments(folder, ".arrow")[1]
    path.write_bytes(path.read_bytes() + b"torn")


def lose_segment(folder: Path) -> None:
    for suffix in (".arrow", ".index"):
        segments(folder, suffix)[1].unlink()


def lose_index(folder: Path) -> None:
    segments(folder, ".index")[1].unlink()


def lose_schema(folder: Path) -> None:
    change(segments(folder, ".arrow")[1], 0, bytes(16))


def lower_epoch(folder: Path) -> None:
    """The first segment, of epoch 3, in place of the last: its entries hold, and its offsets do not."""
    for suffix in (".arrow", ".index"):
        segments(folder, suffix)[-1].write_bytes(segments(folder, suffix)[0].read_bytes())


def wrong_epochs(folder: Path) -> None:
    (folder / "epochs.jsonl").unlink()


def damaged_epochs(folder: Path) -> None:
    change(folder / "epochs.jsonl", 12, b"x")


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (flip_data, "does not have its CRC-32C"),
        (flip_entry, "the checksum of entry 1 does not hold"),
        (flip_first_entry, "the checksum of entry 0 does not hold"),
        (cut_data, "the data ends before the batch does at entry 1"),
        (more_data, "4 bytes of data and 0 of its index are behind its last entry"),
        (lose_segment, "it starts at offset 8, the log before it ends at 4"),
        (lose_index, "No such file"),
        (lose_schema, "its schema does not have the CRC-32C"),
        (lower_epoch, "offsets do not continue at entry 0"),
        (wrong_epochs, "epochs.jsonl says [], the entries say [(3, 0), (5, 4)]"),
        (damaged_epochs, "does not have its checksum"),
    ],
)
def test_damage_is_found_and_where_and_what_to_do_is_said(
    run: Run, folder: Path, damage: Callable[[Path], None], what: str
) -> None:
    damage(folder)
    before = files_of(folder)
    ran = run("log", "verify", folder.parent, "--format", "json")
    assert ran.exit == 1
    assert what in ran.err
    assert str(folder) in ran.err
    assert "Read what is missing from another in-sync replica" in ran.err
    assert json.loads(ran.out)[0]["problems"] == 1
    assert files_of(folder) == before


def test_a_log_whose_head_is_gone_starts_where_it_says(run: Run, folder: Path) -> None:
    log = log_in(folder, directory=folder.parent)
    log.forget(6)
    start = log.log_start
    log.close()
    assert start > 0
    ran = run("log", "verify", folder, "--format", "json")
    assert (ran.exit, ran.err) == (0, "")
    assert (json.loads(ran.out)[0]["start"], json.loads(ran.out)[0]["end"]) == (start, 12)
    change(folder / "log_start.json", 12, b"x")
    assert run("log", "verify", folder).exit == 1


def test_a_log_that_ends_below_its_checkpoint_has_lost_something(run: Run, folder: Path) -> None:
    for suffix in (".arrow", ".index"):
        segments(folder, suffix)[-1].unlink()
    ran = run("log", "verify", folder)
    assert ran.exit == 1
    assert "high_watermarks.jsonl says 10, but the log ends at 8" in ran.err


def test_nobody_can_say_what_is_committed_where_that_file_is_damaged(run: Run, folder: Path) -> None:
    (folder.parent / "high_watermarks.jsonl").write_bytes(b"damaged")
    ran = run("log", "verify", folder, "--format", "json")
    assert (ran.exit, json.loads(ran.out)[0]["problems"]) == (1, 1)
    assert "high_watermarks.jsonl is damaged" in ran.err


def test_a_folder_without_a_log_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    assert run("log", "verify", tmp_path).exit == 2
    assert run("log", "dump", tmp_path).exit == 2
    (tmp_path / "notes.txt").write_text("no segment")
    assert run("log", "dump", tmp_path / "notes.txt").exit == 2


def test_the_entries_of_a_folder_and_of_one_segment_are_listed(run: Run, folder: Path) -> None:
    listed = json.loads(run("log", "dump", folder, "--format", "json").out)
    assert [(entry["base_offset"], entry["last_offset"]) for entry in listed] == [(n, n + 1) for n in range(0, 12, 2)]
    assert [entry["leader_epoch"] for entry in listed] == [3, 3, 5, 5, 5, 5]
    assert [entry["timestamp_ms"] for entry in listed] == list(range(6))
    one = segments(folder, ".arrow")[1]
    assert json.loads(run("log", "dump", one, "--format", "json").out) == [
        entry for entry in listed if entry["segment"] == one.stem
    ]
    some = json.loads(run("log", "dump", folder, "--from", 3, "--max", 2, "--format", "json").out)
    assert [entry["base_offset"] for entry in some] == [2, 4]
    assert "base offset" in run("log", "dump", folder).out


def test_the_rows_are_shown_with_their_offsets(run: Run, folder: Path) -> None:
    ran = run("log", "dump", folder, "--rows", "--from", 3, "--max", 4, "--format", "json")
    assert json.loads(ran.out) == [{"_offset": n, "row": n, "text": f"row {n}"} for n in range(3, 7)]


def test_a_dump_of_a_damaged_batch_says_so(run: Run, folder: Path) -> None:
    flip_data(folder)
    ran = run("log", "dump", folder, "--rows")
    assert (ran.exit, ran.out) == (1, "")
    assert "does not have its CRC-32C" in ran.err
    lose_index(folder)
    ran = run("log", "dump", segments(folder, ".arrow")[1])
    assert ran.exit == 1
    assert "`log verify` says what of it holds" in ran.err
