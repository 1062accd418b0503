"""A detached process's output, which is a file, stays small, and nothing of it is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_replication.process import logs
from spark_replication.process.logs import kept, rotate_unused

TIMEOUT_S = 20.0
BYTES_MAX = 40_000
# It does what it reads, a line at a time, and says each time when it has done so.
PROCESS = f"""
import faulthandler, logging, os, sys, threading
from pathlib import Path
from spark_replication.process import logs
from spark_replication.process.logs import log_to_stdout
logs.FILE_BYTES_MAX = {BYTES_MAX}
log_to_stdout(Path(sys.argv[1]))
log = logging.getLogger("spark_replication")
done = os.fdopen(int(sys.argv[2]), "w", buffering=1)

def native(count):
    for number in range(count):
        os.write(2, b"native %06d\\n" % number)

def both(count):
    writing = threading.Thread(target=native, args=(count,))
    writing.start()
    for number in range(count):
        log.info("logged %06d", number)
    writing.join()

for line in sys.stdin:
    exec(line)
    done.write("done\\n")
"""


class Process:
    def __init__(self, process: subprocess.Popen[str], done: int) -> None:
        self._process = process
        self._done = os.fdopen(done, encoding="utf-8")

    def does(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        assert self._done.readline() == "done\n"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=TIMEOUT_S)
        self._done.close()


@contextmanager
def process_of(path: Path, output: int | None = None) -> Iterator[Process]:
    """output: where it writes, if that is not the file."""
    reading, writing = os.pipe()
    with path.open("ab") as file:
        started = subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(path), str(writing)],
            stdin=subprocess.PIPE,
            stdout=output or file,
            stderr=output or file,
            pass_fds=(writing,),
            text=True,
        )
    os.close(writing)
    process = Process(started, reading)
    try:
        yield process
    finally:
        process.close()


def fill(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"." * (BYTES_MAX - 1) + b"\n")


def test_a_large_file_is_kept_and_begun_anew_and_whoever_writes_meanwhile_loses_nothing(tmp_path: Path) -> None:
    path, count = tmp_path / "broker.log", 350  # so that it is begun anew once
    with process_of(path) as process:
        process.does(f"both({count})")
    before, after = kept(path).read_text().splitlines(), path.read_text().splitlines()
    lines = [*before, *after]
    assert [line for line in lines if line.startswith("native")] == [f"native {number:06}" for number in range(count)]
    assert [number for number in range(count) if sum(f'"logged {number:06}"' in line for line in lines) != 1] == []
    assert len(lines) == 2 * count
    assert kept(path).stat().st_size < BYTES_MAX + 1_000
    assert sorted(tmp_path.iterdir()) == [path, kept(path)]


def test_what_is_no_log_line_goes_there_too(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    with process_of(path) as process:
        fill(path)
        process.does("log.info('first')")
        process.does("faulthandler.dump_traceback()")
        process.does("print('said', flush=True)")
    said = path.read_text()
    assert "most recent call first" in said
    assert "said\n" in said
    assert '"first"' in kept(path).read_text()


def test_the_file_of_another_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    with process_of(path, subprocess.DEVNULL) as process:
        fill(path)
        process.does("log.info('elsewhere')")
    assert not kept(path).exists()


def test_who_finds_its_file_renamed_goes_on_in_the_one_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    with process_of(path) as process, process_of(path) as other:
        fill(path)
        process.does("log.info('begins anew')")
        other.does("log.info('finds it renamed')")
        other.does("log.info('goes on')")
    assert "finds it renamed" in kept(path).read_text()
    assert "goes on" in path.read_text()


@pytest.mark.parametrize("in_the_way", ["broker.log.new", "broker.log.1"])
def test_a_disk_that_refuses_is_asked_again(tmp_path: Path, in_the_way: str) -> None:
    path = tmp_path / "broker.log"
    (tmp_path / in_the_way / "something").mkdir(parents=True)
    with process_of(path) as process:
        fill(path)
        process.does("held = len(os.listdir('/proc/self/fd'))")
        process.does("log.info('refused')")
        process.does("assert len(os.listdir('/proc/self/fd')) == held")
        assert '"refused"' in path.read_text()
        (tmp_path / in_the_way / "something").rmdir()
        (tmp_path / in_the_way).rmdir()
        process.does("log.info('taken')")
        process.does("log.info('anew')")
    assert '"anew"' in path.read_text()
    assert '"refused"' not in path.read_text()


@pytest.mark.parametrize(("size", "is_kept"), [(99, False), (100, True), (None, False)])
def test_a_large_file_is_kept_before_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int | None, *, is_kept: bool
) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES_MAX", 100)
    path = tmp_path / "log"
    if size is not None:
        path.write_bytes(b"." * size)
    rotate_unused(path)
    assert kept(path).exists() == is_kept
    assert path.exists() == (size is not None and not is_kept)
