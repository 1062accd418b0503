"""Ctrl-C at any moment of the main job's start leaves no process, and a directory in which the next one succeeds."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from spark_replication.process.stop_signals import INTERRUPTED
from tests.live.spark.waiting import POLL_S, wait_for

pytestmark = [pytest.mark.trust, pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(360)]

ROOT = Path(__file__).parents[3]
SEED = 20261122
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 90.0
END_TIMEOUT_S = 15.0


class Job:
    def __init__(self, directory: Path, process: subprocess.Popen[bytes], log: Path) -> None:
        self.data = directory / "data"
        self.process = process
        self._log = log

    def says(self) -> str:
        return self._log.read_text(errors="replace")

    def commands(self) -> bool:
        """In this life: log lines of its driver are counted by lives."""
        lines = (self.data / "driver.log").read_text().splitlines()
        lives = [line for line in lines if "this is driver" in line or "controller at epoch" in line]
        return bool(lives) and "controller at epoch" in lives[-1]

    def has_come(self, moment: Moment, began: float) -> bool:
        assert self.process.poll() is None, f"it ended before {moment.name}: {self.says()}"
        return moment.has_come(self, began)

    def left(self) -> dict[int, bytes]:
        """Its own and all their children, by what they were given: Spark, Python workers, ZooKeeper, brokers. With the
        command of each, read once: another look may find that it has ended."""
        mark = os.fsencode(self.data)
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                command = (path / "cmdline").read_bytes()
                if mark in command or mark in (path / "environ").read_bytes():
                    found[int(path.name)] = command
            except OSError:
                continue
        return found

    def end(self, *, how: Callable[[], None]) -> int:
        how()
        code = self.process.wait(STOP_TIMEOUT_S)
        deadline = time.monotonic() + END_TIMEOUT_S
        while left := self.left():
            told = [_told(*found) for found in left.items()]
            assert time.monotonic() < deadline, f"left behind are {told}: {self.says()}"
            time.sleep(POLL_S)
        return code

    def press_ctrl_c(self) -> None:
        """A terminal's: it goes to all of its foreground processes, Spark's too."""
        os.killpg(self.process.pid, signal.SIGINT)

    def press_ctrl_c_twice(self) -> None:
        self.press_ctrl_c()
        time.sleep(0.2)  # as impatient as people are
        self.press_ctrl_c()


def _told(pid: int, command: bytes) -> str:
    return f"{pid}: {command.replace(bytes(1), b' ').decode(errors='replace')[:300]}"


@contextmanager
def started(directory: Path, log: Path) -> Iterator[Job]:
    data = directory / "data"
    command = [sys.executable, "jobs/start_cluster.py", "--set", f"data.dir={data}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "STARTED_BY_TEST": str(data)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    job = Job(directory, process, log)
    try:
        yield job
    finally:
        for pid in job.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


@dataclass(frozen=True)
class Moment:
    """Of one start: what earlier ones left in the directory is older."""

    name: str
    has_come: Callable[[Job, float], bool]


def says(text: str) -> Callable[[Job, float], bool]:
    return lambda job, _began: text in job.says()


def files(pattern: str, count: int = 1) -> Callable[[Job, float], bool]:
    """So many that this start has written."""

    def written(job: Job, began: float) -> bool:
        return sum(path.stat().st_mtime >= began for path in job.data.glob(pattern)) >= count

    return written


def after(seconds: float) -> Callable[[Job, float], bool]:
    return lambda _job, began: time.time() >= began + seconds


def has_a_jvm(job: Job, _began: float) -> bool:
    return any(b"java" in command for command in job.left().values())


def moments(seed: int) -> list[Moment]:
    seconds = random.Random(seed).uniform(3, 20)
    return [
        Moment("it says that it starts", says("starting Spark")),
        Moment("Spark's JVM is there", has_a_jvm),
        Moment("ZooKeeper is being started", files("zookeeper/zoo.cfg")),
        Moment("it commands", lambda job, began: files("driver.log")(job, began) and job.commands()),
        Moment("a broker is being started", files("logs/broker-*/broker.log")),
        Moment("a broker serves", files("logs/broker-*/broker.json")),
        Moment(f"after {seconds:.1f} s", after(seconds)),
    ]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all the interrupted starts: each begins in what the one before has left."""
    return tmp_path_factory.mktemp("interrupted")


@pytest.mark.parametrize(
    ("number", "moment"), list(enumerate(moments(SEED))), ids=lambda value: getattr(value, "name", "")
)
def test_ctrl_c_at_any_moment_leaves_nothing(directory: Path, number: int, moment: Moment) -> None:
    began = time.time()
    with started(directory, directory / f"{number}.log") as job:
        wait_for(moment.name, partial(job.has_come, moment, began), START_TIMEOUT_S)
        code = job.end(how=(job.press_ctrl_c, job.press_ctrl_c_twice, job.process.terminate)[number % 3])
        healthy = "Ctrl-C stops everything" in job.says()
        assert code == (0 if healthy else INTERRUPTED), f"{moment.name} (seed {SEED}): {job.says()}"
        assert "Traceback" not in job.says(), f"{moment.name} (seed {SEED}): {job.says()}"
