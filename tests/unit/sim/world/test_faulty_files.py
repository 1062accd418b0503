"""The simulator's files behave as the kernel's while nothing breaks, and lose no more than the port allows."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.sim.world.faulty_files import BLOCK_BYTES, FaultyFiles
from spark_replication.sim.world.world import Killed
from spark_replication.storage.disk.files import Files, LocalFiles

A, B = Path("logs/a"), Path("logs/b")
FOLDERS = st.sampled_from([A, B, Path("logs/q")])
PATHS = st.builds(lambda folder, name: folder / name, FOLDERS, st.sampled_from(["one", "two"]))
DATA = st.binary(max_size=2 * BLOCK_BYTES)
SIZES = st.integers(0, 3 * BLOCK_BYTES)
Step = tuple[str, tuple[object, ...]]
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("create"), st.tuples(PATHS, DATA)),
    st.tuples(st.just("write"), st.tuples(PATHS, DATA, SIZES)),
    st.tuples(st.just("truncate"), st.tuples(PATHS, SIZES)),
    st.tuples(st.just("read"), st.tuples(PATHS, SIZES, SIZES)),
    st.tuples(st.sampled_from(["read_whole", "size", "sync", "remove", "release"]), st.tuples(PATHS)),
    st.tuples(st.just("replace"), st.tuples(PATHS, PATHS)),
    st.tuples(
        st.sampled_from(["make_folder", "file_names", "folder_names", "remove_folder", "sync_folder"]),
        st.tuples(FOLDERS),
    ),
    st.tuples(st.just("rename_folder"), st.tuples(FOLDERS, FOLDERS)),
)


def outcome(files: Files, root: Path, step: Step) -> object:
    name, arguments = step
    whole = [root / argument if isinstance(argument, Path) else argument for argument in arguments]
    try:
        found = getattr(files, name)(*whole)
    except OSError as error:
        return type(error)
    return sorted(found) if isinstance(found, list) else found


@given(steps=st.lists(STEPS, max_size=40))
def test_while_nothing_breaks_they_are_the_kernels(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        local, faulty = LocalFiles(open_files_max=2), FaultyFiles()
        local.make_folder(Path(folder) / A)
        faulty.make_folder(A)
        for step in steps:
            name, arguments = step
            if name == "rename_folder" and faulty_has(faulty, arguments[1]):
                continue  # it is not there before: the port says so
            if name == "replace" and arguments[0] == arguments[1]:
                continue
            assert outcome(faulty, Path(), step) == outcome(local, Path(folder), step), step


def faulty_has(files: FaultyFiles, folder: object) -> bool:
    assert isinstance(folder, Path)
    try:
        return folder.name in files.folder_names(folder.parent)
    except FileNotFoundError:
        return False


def fates(prepare: Callable[[FaultyFiles], None], see: Callable[[FaultyFiles], object]) -> set[object]:
    """What may be found after a loss of power."""
    found = set()
    for seed in range(300):
        files = FaultyFiles()
        files.make_folder(A)
        files.write_back()
        prepare(files)
        files.lose_power(random.Random(seed))
        found.add(see(files))
    return found


def content(files: FaultyFiles) -> bytes | None:
    return None if files.size(A / "log") is None else files.read_whole(A / "log")


def written(files: FaultyFiles, *, synced: bool) -> None:
    files.create(A / "log", b"old")
    files.sync(A / "log")
    files.sync_folder(A)
    files.write(A / "log", b"-new-", 3)
    files.write(A / "log", b"newer", 8)
    if synced:
        files.sync(A / "log")


def test_what_was_synced_survives() -> None:
    assert fates(lambda files: written(files, synced=True), content) == {b"old-new-newer"}


def test_of_the_rest_any_part_does() -> None:
    found = fates(lambda files: written(files, synced=False), content)
    assert {b"old", b"old-new-", b"old-new-newer", b"old-n", b"old-new-new"} <= found
    assert any(isinstance(each, bytes) and b"\0" in each for each in found), "a block may be nothing but zeros"
    assert all(isinstance(each, bytes) and 3 <= len(each) <= 13 for each in found)


def test_a_cut_that_was_not_synced_may_be_undone() -> None:
    def cut(files: FaultyFiles) -> None:
        written(files, synced=True)
        files.truncate(A / "log", 3)
        files.write(A / "log", b"!", 3)

    assert {b"old!", b"old", b"old-new-newer"} <= fates(cut, content)


def test_a_name_comes_or_goes_with_its_folder_and_not_with_its_bytes() -> None:
    def created(files: FaultyFiles) -> None:
        files.create(A / "log", b"new")
        files.sync(A / "log")

    assert fates(created, content) == {None, b"new"}

    def replaced(files: FaultyFiles) -> None:
        files.create(A / "log", b"old")
        files.write_back()
        files.create(A / "beside", b"new")
        files.replace(A / "beside", A / "log")

    assert {b"old", b"new", b""} <= fates(replaced, content)


def test_a_folder_that_moved_is_here_or_there() -> None:
    def moved(files: FaultyFiles) -> None:
        files.create(A / "log", b"kept")
        files.write_back()
        files.rename_folder(A, B)

    found = fates(moved, lambda files: tuple(sorted(files.folder_names(Path("logs")))))
    assert {("a",), ("b",)} <= found


def test_a_process_is_killed_in_the_midst_of_the_change_after_so_many() -> None:
    files = FaultyFiles()
    files.make_folder(A)
    files.create(A / "log", b"")
    files.dies_in = 1
    files.write(A / "log", b"whole", 0)
    with pytest.raises(Killed):
        files.write(A / "log", b"torn", 5)
    assert files.read_whole(A / "log") == b"wholeto"
    files.dies_in = 0
    with pytest.raises(Killed):
        files.remove(A / "log")
    assert files.read_whole(A / "log") == b"wholeto"
    files.remove(A / "log")
    assert files.size(A / "log") is None


def test_a_full_disk_takes_half_of_what_does_not_fit_and_lets_go_of_what_is_there() -> None:
    files = FaultyFiles()
    files.make_folder(A)
    files.create(A / "log", b"abcdef")
    files.full = True
    files.write(A / "log", b"AB", 0)  # it has its place already
    refusals: list[Callable[[], None]] = [
        lambda: files.write(A / "log", b"ghij", 6),
        lambda: files.create(A / "other", b""),
        lambda: files.make_folder(B),
    ]
    for refused in refusals:
        with pytest.raises(OSError, match="No space left"):
            refused()
    assert (files.read_whole(A / "log"), files.file_names(A), files.folder_names(Path("logs"))) == (
        b"ABcdefgh",
        ["log"],
        ["a"],
    )
    files.truncate(A / "log", 2)
    files.remove(A / "log")
    assert files.file_names(A) == []


def test_a_sync_that_fails_is_seen_by_nobody_until_the_power_goes() -> None:
    def failed(files: FaultyFiles) -> None:
        written(files, synced=False)
        files.failing = random.Random(f"{len(read)}")
        with pytest.raises(OSError, match="Input/output error"):
            files.sync(A / "log")
        files.failing = None
        read.append(files.read_whole(A / "log"))
        files.write(A / "log", b"!", 3)
        files.sync(A / "log")

    read: list[bytes] = []
    found = fates(failed, content)
    assert set(read) == {b"old-new-newer"}
    assert {b"old!new-newer"} < found
    assert all(isinstance(each, bytes) and (len(each), each[3:4]) == (13, b"!") for each in found), "it is honest again"


def test_the_kernel_writes_back_some_files_and_folders_and_not_others() -> None:
    def some(files: FaultyFiles) -> None:
        files.create(A / "log", b"new")
        rng = random.Random(f"{next(numbers)}")
        files.write_back(lambda: rng.random() < 0.5)

    numbers = count()
    assert {None, b"", b"new"} <= fates(some, content)


def test_what_rots_is_read_as_another_byte_until_it_is_written_or_cut() -> None:
    files, path = FaultyFiles(), A / "one"
    files.make_folder(A)
    files.create(path, b"abcdef")
    files.rot(path, 2)
    assert (files.read(path, 6, 0), files.read(path, 2, 1), files.read(path, 2, 3)) == (b"abbdef", b"bb", b"de")
    assert files.stored(path, 2, 1).read() == b"bb"
    files.write(path, b"B", 1)
    assert files.read(path, 6, 0) == b"aBbdef"
    files.write(path, b"C", 2)
    assert files.read(path, 6, 0) == b"aBCdef"
    files.rot(path, 4)
    files.truncate(path, 4)
    files.write(path, b"ef", 4)
    assert files.read(path, 6, 0) == b"aBCdef"
