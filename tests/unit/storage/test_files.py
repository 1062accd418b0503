"""The kernel's files behind the port: few descriptors, and none that outlives its name."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spark_replication.storage.disk.files import LocalFiles


def open_files(folder: Path) -> list[str]:
    handles = Path("/proc/self/fd")
    links = [str(handle.readlink()) for handle in handles.iterdir() if handle.exists()]
    return sorted(link.removeprefix(f"{folder}/") for link in links if link.startswith(str(folder)))


def created(files: LocalFiles, folder: Path, *names: str) -> list[Path]:
    for name in names:
        files.create(folder / name, name.encode())
    return [folder / name for name in names]


def test_a_write_lands_at_its_place_and_the_file_must_exist(tmp_path: Path) -> None:
    files = LocalFiles(open_files_max=2)
    (path,) = created(files, tmp_path, "abcdef")
    files.write(path, b"XY", 2)
    files.write(path, memoryview(b"Z"), 8)
    assert (files.read(path, 99, 0), files.read(path, 2, 3), files.read(path, 2, 50)) == (b"abXYef\0\0Z", b"Ye", b"")
    files.truncate(path, 3)
    assert (files.read_whole(path), files.size(path), files.size(tmp_path / "none")) == (b"abX", 3, None)
    for missing in (
        lambda: files.write(tmp_path / "none", b"x", 0),
        lambda: files.read(tmp_path / "none", 1, 0),
        lambda: files.read_whole(tmp_path / "none"),
        lambda: files.sync(tmp_path / "none"),
    ):
        with pytest.raises(FileNotFoundError):
            missing()
    files.remove(tmp_path / "none")


def test_only_so_many_files_are_open_and_those_in_use_stay_longest(tmp_path: Path) -> None:
    files = LocalFiles(open_files_max=3)
    paths = created(files, tmp_path, "a", "b", "c", "d", "e")
    assert open_files(tmp_path) == []
    for path in paths:
        assert files.read(path, 1, 0) == path.name.encode()
        files.read(paths[0], 1, 0)
    assert len(open_files(tmp_path)) == 3
    assert {"a", "e"} <= set(open_files(tmp_path))
    for path in paths:
        files.sync(path)  # opens nothing to stay
    assert len(open_files(tmp_path)) == 3
    for path in paths:
        files.release(path)
    assert open_files(tmp_path) == []


def test_a_file_that_is_made_anew_under_a_name_is_the_one_that_is_read(tmp_path: Path) -> None:
    files = LocalFiles(open_files_max=10)
    one, two = created(files, tmp_path, "one", "two")
    for path in (one, two):
        files.read(path, 9, 0)
    files.replace(two, one)
    assert (files.read(one, 9, 0), files.size(two)) == (b"two", None)
    files.remove(one)
    files.create(one, b"again")
    assert files.read(one, 9, 0) == b"again"
    assert open_files(tmp_path) == ["one"]


def test_a_range_is_of_the_file_that_had_the_name_then(tmp_path: Path) -> None:
    files = LocalFiles(open_files_max=1)
    one, two = created(files, tmp_path, "first", "second")
    found = files.stored(one, 3, 1)
    files.remove(one)
    files.create(one, b"another")
    files.read(two, 1, 0)  # takes the only place
    assert (len(found), found.read(), files.stored(one, 3, 1).read()) == (3, b"irs", b"not")
    del found
    assert open_files(tmp_path) == ["first"]


def test_a_range_goes_to_a_connection_as_far_as_its_file_does(tmp_path: Path) -> None:
    files = LocalFiles(open_files_max=1)
    (path,) = created(files, tmp_path, "abcdef")
    found = files.stored(path, 4, 1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert (found.send_to(ours.fileno(), 0), theirs.recv(99)) == (4, b"bcde")
        files.truncate(path, 3)
        assert (found.send_to(ours.fileno(), 0), theirs.recv(99)) == (2, b"bc")
        theirs.close()
        assert found.send_to(ours.fileno(), 0) == 0
    with pytest.raises(OSError, match="the file has 2 of 4 bytes"):
        found.read()


def test_a_range_is_read_in_parts_as_far_as_its_file_goes(tmp_path: Path) -> None:
    files = LocalFiles(open_files_max=1)
    (path,) = created(files, tmp_path, "abcdef")
    found, room = files.stored(path, 4, 1), memoryview(bytearray(9))
    assert (found.read_into(room[:3], 0), bytes(room[:3])) == (3, b"bcd")
    assert (found.read_into(room, 3), bytes(room[:2])) == (1, b"ec"), "what follows the range is not its own"
    files.truncate(path, 3)
    assert (found.read_into(room, 0), bytes(room[:2])) == (2, b"bc")
    assert found.read_into(room, 2) == 0


def test_of_a_disk_that_fails_a_range_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = LocalFiles(open_files_max=1)
    (path,) = created(files, tmp_path, "abcdef")
    found = files.stored(path, 4, 1)

    def failing(*_: object) -> int:
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(os, "preadv", failing)
    assert found.read_into(memoryview(bytearray(9)), 0) == 0


def test_what_is_not_in_memory_is_told_and_warmed(tmp_path: Path) -> None:
    files = LocalFiles(open_files_max=1)
    path = tmp_path / "data"
    path.write_bytes(bytes(3 << 20))
    os.sync()
    found = files.stored(path, 2 << 20, 4096)
    is_told = found.is_cached  # it was just written: some file systems cannot tell
    with path.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    found.warm()
    assert found.is_cached is is_told
    assert found.read() == bytes(2 << 20)
    os.truncate(path, 100)
    found.warm()
    with pytest.raises(OSError, match="the file has 0 of"):
        found.read()


def test_folders_come_move_and_go_with_what_is_open_in_them(tmp_path: Path) -> None:
    files = LocalFiles(open_files_max=10)
    folder = tmp_path / "a" / "b"
    files.make_folder(folder)
    files.make_folder(folder)
    (path,) = created(files, folder, "file")
    files.read(path, 1, 0)
    files.sync_folder(folder)
    assert (files.folder_names(tmp_path), files.file_names(tmp_path)) == (["a"], [])
    assert (files.folder_names(folder), files.file_names(folder)) == ([], ["file"])
    files.rename_folder(folder, tmp_path / "c")
    assert (open_files(tmp_path), files.read(tmp_path / "c" / "file", 9, 0)) == ([], b"file")
    files.remove_folder(tmp_path / "c")
    assert (open_files(tmp_path), sorted(files.folder_names(tmp_path))) == ([], ["a"])
    with pytest.raises(FileNotFoundError):
        files.file_names(tmp_path / "c")


def test_threads_that_share_few_descriptors_never_meet_each_others_files(tmp_path: Path) -> None:
    files = LocalFiles(open_files_max=2)
    failed: list[str] = []

    def write_and_read(path: Path) -> None:
        for number in range(300):
            content = f"{path.name} {number:06}".encode()
            files.write(path, content, 0)
            if files.read(path, 99, 0) != content:
                failed.append(path.name)

    paths = created(files, tmp_path, *"abcdef")
    threads = [threading.Thread(target=write_and_read, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (failed, len(open_files(tmp_path))) == ([], 2)


@pytest.mark.slow
def test_ten_thousand_logs_fit_in_a_thousand_descriptors(tmp_path: Path) -> None:
    script = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from spark_replication.model import TopicPartition
from tests.unit.storage.storage_stories import prepared, read_rows
from tests.unit.storage.test_local_files import SETTINGS, logs_in
logs = logs_in(Path(sys.argv[1]), open_files_max=512)
batches = [prepared(0), prepared(2)]
opened = [logs.open(TopicPartition("many", number), "id", SETTINGS) for number in range(10_000)]
for log in opened:
    log.begin_epoch(0)
for batch in batches:
    for log in opened:
        log.append(batch, leader_epoch=0, timestamp_ms=0)
assert all(read_rows(log) == [0, 1, 2, 3] for log in opened)
print(400 < len(list(Path("/proc/self/fd").iterdir())) < 600)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert (ran.stdout, ran.stderr) == ("True\n", "")


def test_without_a_descriptor_left_open_files_give_way(tmp_path: Path) -> None:
    script = """
import errno, os, resource, sys
from pathlib import Path
from spark_replication.storage.disk.files import LocalFiles
folder = Path(sys.argv[1])
files = LocalFiles(open_files_max=100)
paths = [folder / str(number) for number in range(40)]
for path in paths:
    files.create(path, b"content of " + path.name.encode())
    files.read(path, 1, 0)
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
taken = []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError as error:
    assert error.errno == errno.EMFILE
for _ in range(2):
    files.create(folder / "new", b"new")
    files.write(folder / "new", b"N", 0)
    files.sync(folder / "new")
    files.sync_folder(folder)
    assert files.read_whole(folder / "new") == b"New"
    assert len(files.file_names(folder)) == 41 and not files.folder_names(folder)
    assert all(files.read(path, 99, 11) == path.name.encode() for path in paths)
for path in paths:
    files.release(path)
files.release(folder / "new")
taken += [os.open(os.devnull, os.O_RDONLY) for _ in range(128 - len(os.listdir("/proc/self/fd")) + 1)]
try:
    files.read(paths[0], 1, 0)
except OSError as error:
    print(error.errno == errno.EMFILE)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert (ran.stdout, ran.stderr) == ("True\n", "")
