"""How two clusters are compared: their turns, the ratios of their rounds, and a program of the load that fails."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from spark_replication.admin.bench import sides
from spark_replication.admin.bench.rounds import exactly
from spark_replication.admin.bench.side import Paced, Rows, Side
from spark_replication.admin.bench.sides import ended, in_turns, ratios, ready, run
from spark_replication.errors import ReplicationError, RequestTimedOut
from spark_replication.model import Scalar


class Idle(Side):
    """A cluster of which this process stands for the one broker. It has no topics."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def bootstrap(self) -> str:
        raise NotImplementedError

    @property
    def pids(self) -> tuple[int, ...]:
        return (os.getpid(),)

    def create(self, topic: str, partitions: int, config: Mapping[str, Scalar], replicas: int = 3) -> None:
        raise NotImplementedError

    def delete(self, topic: str) -> None:
        raise NotImplementedError

    def producer(self, topic: str, of: Rows, *, warm_up: int, batches: int) -> list[str]:
        raise NotImplementedError

    def produced_mb_per_s(self, printed: str, of: Rows) -> float:
        raise NotImplementedError

    def consumer(self, topic: str, of: Rows, *, warm_up: int, rows: int) -> list[str]:
        raise NotImplementedError

    def consumed_mb_per_s(self, printed: str, of: Rows, *, warm_up: int) -> float:
        raise NotImplementedError

    def paced(self, topic: str, of: Paced, *, warm_up: int, rows: int) -> list[str]:
        raise NotImplementedError

    def rereading(self, topic: str, of: Rows, mb_per_s: int) -> list[str]:
        raise NotImplementedError

    def moving(self, topic: str, partition_bytes: int) -> list[str]:
        raise NotImplementedError

    def victim(self, topic: str) -> tuple[int, list[int]]:
        raise NotImplementedError

    def resuming(self, topic: str, partitions: int) -> list[str]:
        raise NotImplementedError

    def kill(self, broker: int) -> None:
        raise NotImplementedError

    def elected_s(self, topic: str, partitions: Collection[int], killed_s: float) -> float:
        raise NotImplementedError

    def restore(self, topic: str, broker: int) -> None:
        raise NotImplementedError


def test_who_came_first_comes_last_in_the_next_round() -> None:
    two = [Idle("a"), Idle("b")]
    assert [side.name for _, side in in_turns(two, exactly(3))] == ["a", "b", "b", "a", "a", "b"]
    assert [place for place, _ in in_turns(two, exactly(2))] == [0, 1, 1, 0]


def test_a_ratio_is_that_of_one_round() -> None:
    # The machine was half as fast in the second round: that is no difference between the two.
    assert ratios([100.0, 50.0, 90.0], [50.0, 25.0, 30.0]) == {"ratio": 2.0, "least_ratio": 2.0, "most_ratio": 3.0}


def test_what_each_program_printed_and_used() -> None:
    burn = "import time\nwhile time.process_time() < 0.2: pass\nprint('done')"
    printed, used = run(Idle("a"), [sys.executable, "-c", burn], times=2)
    assert printed == ["done\n", "done\n"]
    assert used.clients >= 0.4


def test_a_program_that_fails_is_quoted() -> None:
    with pytest.raises(ReplicationError, match=r"exit code 1: no leader"):
        run(Idle("a"), [sys.executable, "-c", "import sys; sys.exit('no leader')"])


def test_a_program_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "TIMEOUT_S", 2.0)
    told = tmp_path / "pid"
    with pytest.raises(RequestTimedOut, match="did not end"):
        run(Idle("a"), ["/bin/sh", "-c", f"echo $$ > {told}; exec sleep 60"])
    pid = int(told.read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_program_that_goes_on_is_told_to_end_by_its_input() -> None:
    goes_on = "import sys\nprint('ready', flush=True)\nsys.stdin.read()\nprint('done')"
    with ready([sys.executable, "-c", goes_on]) as program:
        assert program.poll() is None
        assert ended(program, "") == "done\n"


def test_a_program_that_does_not_get_ready_is_quoted_and_one_that_is_left_alone_is_ended() -> None:
    with (
        pytest.raises(ReplicationError, match=r"exit code 1: no leader"),
        ready([sys.executable, "-c", "import sys; sys.exit('no leader')"]),
    ):
        pass
    with ready(["/bin/sh", "-c", "echo ready; exec sleep 60"]) as program:
        pass
    assert program.wait() == -signal.SIGKILL
