"""Runs the command as a shell would: what it writes to stdout and stderr, and its exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
