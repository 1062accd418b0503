"""How far all of a broker's logs are committed, in one file: what a crash, a full disk and damage leave of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replication.errors import CorruptState, StorageFailed
from spark_replication.storage.disk.files import LocalFiles
from spark_replication.storage.format.index import Buffer
from spark_replication.storage.log.high_watermarks import HIGH_WATERMARKS_FILE, HighWatermarks, read_high_watermarks
from tests.unit.storage.failing_files import FailingFiles

FILES = LocalFiles(open_files_max=1)


def opened(directory: Path, files: FailingFiles | LocalFiles = FILES) -> HighWatermarks:
    return HighWatermarks(directory, files)


class CountingFiles(FailingFiles):
    def __init__(self) -> None:
        super().__init__()
        self.written_bytes = 0

    def create(self, path: Path, data: Buffer) -> None:
        self.written_bytes += len(data)
        super().create(path, data)

    def write(self, path: Path, data: Buffer, position: int) -> None:
        self.written_bytes += len(data)
        super().write(path, data, position)


def lines(directory: Path) -> list[bytes]:
    return (directory / HIGH_WATERMARKS_FILE).read_bytes().splitlines(keepends=True)


def saved(directory: Path, **offsets: int) -> HighWatermarks:
    """Each in a line of its own."""
    marks = opened(directory)
    for log, offset in offsets.items():
        marks.note(log, offset)
        marks.save(durable=False)
    return marks


def test_what_is_noted_is_saved_together_and_only_once(tmp_path: Path) -> None:
    marks = opened(tmp_path)
    marks.save(durable=True)
    assert not (tmp_path / HIGH_WATERMARKS_FILE).exists()
    marks.note("a", 3)
    marks.note("b", 5)
    assert (marks.of("a"), marks.of("c")) == (3, 0)
    assert opened(tmp_path).of("a") == 0
    for _ in range(2):
        marks.save(durable=True)
        assert len(lines(tmp_path)) == 1
    assert read_high_watermarks(FILES, tmp_path) == {"a": 3, "b": 5}
    marks.note("b", 6)
    marks.save(durable=False)
    assert len(lines(tmp_path)) == 2
    assert read_high_watermarks(FILES, tmp_path) == {"a": 3, "b": 6}


def test_who_is_lowered_says_so_at_once_whatever_was_noted(tmp_path: Path) -> None:
    marks = saved(tmp_path, a=9, b=9)
    marks.note("a", 12)
    marks.note("b", 10)
    marks.lower("a", 4)
    assert (marks.of("a"), read_high_watermarks(FILES, tmp_path)) == (4, {"a": 4, "b": 9})
    marks.save(durable=False)
    assert read_high_watermarks(FILES, tmp_path) == {"a": 4, "b": 10}


def test_the_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    logs = [f"orders-{number}.id" for number in range(1000)]
    marks = opened(tmp_path)
    sizes = []
    for offset in range(20):
        for log in logs:
            marks.note(log, offset)
        marks.save(durable=False)
        sizes.append((tmp_path / HIGH_WATERMARKS_FILE).stat().st_size)
    assert max(sizes) < 3 * sizes[0] + (64 << 10)
    assert min(sizes[5:]) < 2 * sizes[0], "it was made anew"
    assert read_high_watermarks(FILES, tmp_path) == dict.fromkeys(logs, 19)


def test_who_is_gone_leaves_nothing_behind_for_one_of_its_name(tmp_path: Path) -> None:
    marks = saved(tmp_path, a=3, b=5, c=7)
    marks.note("b", 6)
    marks.forget("b")
    marks.save(durable=False)
    assert read_high_watermarks(FILES, tmp_path) == {"a": 3, "c": 7}
    marks.keep(["c", "d"])
    assert read_high_watermarks(FILES, tmp_path) == {"c": 7}
    before = lines(tmp_path)
    marks.keep(["c", "d"])
    marks.forget("d")
    assert lines(tmp_path) == before, "nothing has changed"


def test_a_line_that_was_being_written_says_nothing_and_is_written_over(tmp_path: Path) -> None:
    saved(tmp_path, a=3, b=5)
    before = lines(tmp_path)
    torn = lines(tmp_path)[-1]
    for size in range(1, len(torn)):
        (tmp_path / HIGH_WATERMARKS_FILE).write_bytes(b"".join(before) + torn[:size])
        assert read_high_watermarks(FILES, tmp_path) == {"a": 3, "b": 5}
        marks = opened(tmp_path)
        assert not marks.is_damaged
        marks.lower("a", 1)
        assert read_high_watermarks(FILES, tmp_path) == {"a": 1, "b": 5}


@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_line_before_a_sound_one_is_told_and_made_anew(tmp_path: Path, number: int) -> None:
    saved(tmp_path, a=3, b=5, c=7)
    sound = lines(tmp_path)
    for place in range(len(sound[number]) - 1):  # without its end, both look as if they were being written
        flipped = bytearray(sound[number])
        flipped[place] ^= 0x94
        (tmp_path / HIGH_WATERMARKS_FILE).write_bytes(b"".join([*sound[:number], flipped, *sound[number + 1 :]]))
        marks = opened(tmp_path)
        assert (marks.is_damaged, marks.of("a"), marks.of("c")) == (True, 0, 0)
        with pytest.raises(CorruptState, match="is damaged"):
            read_high_watermarks(FILES, tmp_path)
        marks.lower("a", 2)
        assert marks.is_damaged, "until all logs have been looked at"
        marks.keep(["a", "c"])
        assert not opened(tmp_path).is_damaged
        assert read_high_watermarks(FILES, tmp_path) == {"a": 2}


@pytest.mark.parametrize("content", [b"", b"\n", b'e9ed3d6c {"v":9,"offsets":{}}\n', b'{"v":1,"offsets":{"a":1}}\n'])
def test_a_file_without_a_line_that_can_be_read_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / HIGH_WATERMARKS_FILE).write_bytes(content)
    assert opened(tmp_path).is_damaged


def test_a_full_disk_is_told_and_what_was_not_saved_is_saved_later(tmp_path: Path) -> None:
    files = FailingFiles()
    marks = opened(tmp_path, files)
    marks.note("a", 3)
    marks.save(durable=False)
    marks.note("a", 4)
    for room in range(20):
        files.room = room
        with pytest.raises(StorageFailed, match="Free space or repair the disk"):
            marks.save(durable=False)
        with pytest.raises(OSError, match="No space"):
            marks.lower("a", 1)
        assert (marks.of("a"), opened(tmp_path).of("a")) == (4, 3)
    files.heal()
    marks.save(durable=False)
    assert opened(tmp_path).of("a") == 4


def test_a_disk_that_takes_nothing_at_the_start_keeps_nobody_from_starting(tmp_path: Path) -> None:
    saved(tmp_path, a=3, gone=5)
    files = FailingFiles()
    marks = opened(tmp_path, files)
    files.room = 0
    marks.keep(["a"])
    assert (marks.of("a"), marks.of("gone")) == (3, 0)
    files.heal()
    marks.note("a", 4)
    marks.save(durable=False)
    assert read_high_watermarks(FILES, tmp_path) == {"a": 4}


@pytest.mark.parametrize("operation", ["sync", "sync_folder"])
def test_a_disk_that_does_not_vouch_for_it_is_told(tmp_path: Path, operation: str) -> None:
    files = FailingFiles()
    marks = opened(tmp_path, files)
    marks.note("a", 3)
    files.refuse(operation, "")
    with pytest.raises(StorageFailed):
        marks.save(durable=True)


def test_a_file_that_cannot_be_read_is_a_damaged_one_and_made_anew(tmp_path: Path) -> None:
    saved(tmp_path, a=9)
    files = FailingFiles()
    files.refuse("read_whole", HIGH_WATERMARKS_FILE)
    marks = opened(tmp_path, files)
    assert (marks.is_damaged, marks.of("a")) == (True, 0)
    marks.keep(["a"])
    assert (marks.is_damaged, read_high_watermarks(FILES, tmp_path)) == (False, {})


def test_a_thousand_logs_that_go_cost_a_line_each(tmp_path: Path) -> None:
    names = [f"log-{number}" for number in range(1_000)]
    marks = opened(tmp_path)
    for name in names:
        marks.note(name, 1)
    marks.save(durable=False)
    files = CountingFiles()
    marks = opened(tmp_path, files)
    for name in names[:-1]:
        marks.forget(name)
    assert read_high_watermarks(FILES, tmp_path) == {names[-1]: 1}
    assert files.written_bytes < 200 * len(names)


def test_what_a_full_disk_did_not_forget_is_forgotten_with_the_next_change(tmp_path: Path) -> None:
    saved(tmp_path, a=9, b=9)
    files = FailingFiles()
    marks = opened(tmp_path, files)
    files.room = 0
    marks.forget("a")
    assert marks.of("a") == 0
    files.heal()
    marks.note("b", 10)
    marks.save(durable=False)
    assert read_high_watermarks(FILES, tmp_path) == {"b": 10}


def test_one_that_comes_again_under_its_name_is_measured_by_itself(tmp_path: Path) -> None:
    marks = saved(tmp_path, a=9)
    marks.forget("a")
    assert opened(tmp_path).of("a") == 0
    marks.note("a", 2)
    marks.save(durable=False)
    assert read_high_watermarks(FILES, tmp_path) == {"a": 2}
