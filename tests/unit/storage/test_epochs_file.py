"""A log's epoch history in its file: begun by a line, and written anew where lines cannot say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.errors import CorruptState
from spark_replication.storage.disk.files import LocalFiles
from spark_replication.storage.disk.state_files import checked
from spark_replication.storage.log.epochs_file import EPOCHS_FILE, EpochsFile, read_epochs
from tests.unit.storage.failing_files import FailingFiles

FILES = LocalFiles(open_files_max=1)


def lines(folder: Path) -> list[bytes]:
    return (folder / EPOCHS_FILE).read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("histories", "lines_left"),
    [
        ([[(0, 0)], [(0, 0), (2, 5)], [(0, 0), (2, 5), (7, 9)]], 3),
        # One without records gives way to the next.
        ([[(0, 0)], [(0, 0), (2, 5)], [(0, 0), (3, 5)]], 3),
        # It never was: a lower one's records follow.
        ([[(0, 0), (9, 5)], [(0, 0), (7, 5)]], 1),
        # Truncated, trimmed, begun anew.
        ([[(0, 0)], [(0, 0), (2, 5)], [(0, 0)]], 1),
        ([[(0, 0)], [(0, 0), (2, 5)], [(2, 6)]], 1),
        ([[(0, 0)], [(0, 0), (2, 5)], []], 1),
    ],
)
def test_what_was_saved_last_is_read(tmp_path: Path, histories: list[list[tuple[int, int]]], lines_left: int) -> None:
    file = EpochsFile(tmp_path, FILES)
    for history in histories:
        file.save(EpochHistory.of(history))
        assert read_epochs(FILES, tmp_path) == EpochHistory.of(history)
    assert len(lines(tmp_path)) == lines_left
    again = EpochsFile(tmp_path, FILES)
    last = again.read().begun(11, 20)
    again.save(last)
    assert read_epochs(FILES, tmp_path) == last


def test_leaders_that_come_and_go_without_a_record_do_not_fill_the_disk(tmp_path: Path) -> None:
    file = EpochsFile(tmp_path, FILES)
    history = EpochHistory()
    for epoch in range(1_000):
        history = history.begun(epoch, 0)
        file.save(history)
    assert (tmp_path / EPOCHS_FILE).stat().st_size < 5_000
    assert read_epochs(FILES, tmp_path) == history


def test_one_that_was_being_begun_never_was(tmp_path: Path) -> None:
    file = EpochsFile(tmp_path, FILES)
    file.save(EpochHistory.of([(0, 0)]))
    file.save(EpochHistory.of([(0, 0), (2, 5)]))
    first, second = lines(tmp_path)
    for size in range(len(second)):
        (tmp_path / EPOCHS_FILE).write_bytes(first + second[:size])
        again = EpochsFile(tmp_path, FILES)
        assert again.read() == EpochHistory.of([(0, 0)])
        again.save(EpochHistory.of([(0, 0), (3, 5)]))
        assert read_epochs(FILES, tmp_path) == EpochHistory.of([(0, 0), (3, 5)])


@pytest.mark.parametrize(
    "content",
    [
        checked(b'{"v":1,"starts":[[3,0],[2,5]]}'),  # they do not rise
        checked(b'{"v":2,"starts":[]}'),
        b"damaged\n" + checked(b'{"v":1,"starts":[[3,0]]}'),
        b"",
    ],
)
def test_what_is_no_history_is_told_and_replaced_with_the_next(tmp_path: Path, content: bytes) -> None:
    (tmp_path / EPOCHS_FILE).write_bytes(content)
    file = EpochsFile(tmp_path, FILES)
    with pytest.raises((CorruptState, ValueError)):
        file.read()
    file.save(EpochHistory.of([(4, 0)]))
    assert read_epochs(FILES, tmp_path) == EpochHistory.of([(4, 0)])


def test_a_disk_that_fills_up_at_any_byte_leaves_what_it_said(tmp_path: Path) -> None:
    files = FailingFiles()
    file = EpochsFile(tmp_path, files)
    known, more = EpochHistory.of([(0, 0)]), EpochHistory.of([(0, 0), (2, 5)])
    file.save(known)
    for room in range(len(lines(tmp_path)[0])):
        files.room = room
        with pytest.raises(OSError, match="No space"):
            file.save(more)
        assert read_epochs(FILES, tmp_path) == known
    files.heal()
    file.save(more)
    assert read_epochs(FILES, tmp_path) == more
