"""`spark-replication start` and `stop` as a person types them, and what they print as it is printed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_replication.process.processes import LockedProcess
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

DEADLINE_S = 120.0
PROGRAM = [sys.executable, "-m", "spark_replication"]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    LockedProcess(tmp_path / "data" / "starter").stop(DEADLINE_S)


def ran(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def left(directory: Path) -> list[int]:
    """The processes that were told of this directory."""
    mark = os.fsencode(directory)
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def typed(said: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """What it says to type from another terminal, typed there."""
    lines = said.partition("from another terminal:\n")[2].partition("\n\n")[0]
    folder = directory.parent / "bin"
    folder.mkdir(exist_ok=True)
    program = folder / "spark-replication"
    program.write_text(f'#!/bin/sh\nexec {" ".join(PROGRAM)} "$@"\n')
    program.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-e", "-c", lines],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_in_a_terminal_it_runs_until_ctrl_c_and_leaves_nothing() -> None:
    command = [*PROGRAM, "start", "--brokers", "1", "--set", "default.replication.factor=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        said = ""
        while "Ctrl-C stops everything" not in said:
            line = running.stdout.readline()
            assert line, f"it ended: {said}"
            said += line
        named = re.search(r"^data +(\S+)  \(removed at the end: --directory keeps it\)$", said, re.MULTILINE)
        assert named is not None
        temporary = Path(named[1])
        assert temporary.is_dir()
        running.send_signal(signal.SIGINT)
        assert running.wait(DEADLINE_S) == 0
        assert "stopping brokers" in running.stdout.read()
    assert not temporary.exists()
    assert left(temporary) == []


def test_detached_it_serves_what_it_says_until_it_is_stopped_and_goes_on_with_its_data(directory: Path) -> None:
    started = ran("start", "--directory", str(directory), "--detach")
    assert started.returncode == 0, started.stderr
    assert "page        http://127.0.0.1:" in started.stdout
    session = typed(started.stdout, directory)
    assert session.returncode == 0, session.stderr
    assert "tea" in session.stdout
    for detach in ((), ("--detach",)):
        again = ran("start", "--directory", str(directory), *detach)
        assert (again.returncode, again.stdout) == (1, "")
        assert f"runs in {directory} already: `spark-replication stop --directory {directory}`" in again.stderr
    stopped = ran("stop", "--directory", str(directory))
    assert (stopped.returncode, "its data stays" in stopped.stdout) == (0, True), stopped.stderr
    eventually(lambda: left(directory) == [], "all have ended", DEADLINE_S)
    variable = "SPARK_REPLICATION_SEGMENT_BYTES"
    options = ("--detach", "--set", "segment.ms=7000000")
    (directory / "starter" / "told").write_text("where the one before was\n")
    started = ran("start", "--directory", str(directory), *options, **{variable: "1000000"})
    assert (started.returncode, "where the one before was" in started.stdout) == (0, False), started.stderr
    bootstrap = re.search(r"zk://\S+", (directory / "starter" / "told").read_text())
    assert bootstrap is not None
    read = ran("consume", "orders", SPARK_REPLICATION_BOOTSTRAP=bootstrap[0])
    assert "tea" in read.stdout, read.stderr
    shown = ran("settings", "show", "--of", "1", "--format=json", SPARK_REPLICATION_BOOTSTRAP=bootstrap[0])
    given = {row["setting"]: (row["value"], row["from"]) for row in json.loads(shown.stdout)}
    assert given["segment.ms"] == (7_000_000, "--set")
    assert given["segment.bytes"] == (1_000_000, f"environment {variable}")


def test_what_has_not_started_says_why_and_leaves_nothing(directory: Path) -> None:
    failed = ran("start", "--directory", str(directory), "--detach", "--set", "zookeeper.connect=127.0.0.1:1")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "the cluster in" in failed.stderr
    assert "zookeeper.connect" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert left(directory) == []


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("start", "--detach"), 1, "name one with --directory"),
        (("start", "--brokers", "0"), 2, "0 is not in the range x>=1"),
        (("start", "--set", "security.mode=token"), 1, "security.token.file"),
        (("start", "--directory", "{here}/file"), 2, "is a file"),
        (("stop",), 2, "--directory"),
        (("stop", "--directory", "{here}/none"), 2, "does not exist"),
        (("stop", "--directory", "{here}"), 1, "no cluster that `spark-replication start --detach` has left runs in"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    (tmp_path / "file").touch()
    refused = ran(*(each.format(here=tmp_path) for each in arguments))
    assert refused.returncode == code, refused.stderr
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr
    assert refused.stdout in ("", "starting ZooKeeper, a controller and 3 brokers: a few seconds\n")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file"]
