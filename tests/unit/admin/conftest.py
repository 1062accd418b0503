"""Runs the command as a shell would: what it writes to stdout and stderr, and its exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from spark_replication.admin.cli import main, progress_line
from spark_replication.messages.requests import Request, RequestAnswer
from tests.unit.client.fake_cluster import FakeBroker, FakeCluster

NEVER_S = 3_600.0


class Ran(NamedTuple):
    exit: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setattr(progress_line, "LINE_FIRST_S", NEVER_S)  # what a command says is not how slow this machine is

    def ran(*arguments: object) -> Ran:
        monkeypatch.setattr("sys.argv", ["spark-replication", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        said = capsys.readouterr()
        return Ran(int(ended.value.code or 0), said.out, said.err)

    return ran


@pytest.fixture
def endings(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """`stop` does what a signal does to a `consume` in this process, `give_up` what a closed pipe does: neither may
    reach the tests' own."""
    from spark_replication.admin.cli import consume_command  # most tests here do without

    told = SimpleNamespace()
    monkeypatch.setattr(consume_command, "on_stop_signals", lambda stop: setattr(told, "stop", stop))
    monkeypatch.setattr(consume_command, "on_closed_output", lambda give_up: setattr(told, "give_up", give_up))
    return told


@pytest.fixture
def asked(cluster: FakeCluster) -> list[Request]:
    """The requests that the controller has been asked. Each is done."""
    found: list[Request] = []

    def carry_out(_broker: FakeBroker, request: Request) -> RequestAnswer:
        found.append(request)
        return RequestAnswer()

    cluster.carry_out = carry_out
    return found


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    started = FakeCluster()
    yield started
    started.close()
