"""A guardian that sees its broker's pid as nobody's, or as somebody else's, as in containers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.broker.brokers import TIMEOUT_S, Cluster
from tests.live.broker.conftest import StartCluster

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a PID namespace"),
]

ROOT = Path(__file__).parents[3]
APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
RENEWALS = 4


class Elsewhere:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.told: list[str] = []

    def tells(self, begin: str) -> str:
        """The rest of its next line that begins so."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline().strip():
            self.told.append(line)
            if line.startswith(begin):
                return line.removeprefix(begin).strip()
        raise AssertionError(f"it has ended, after {self.told}")

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()


@contextmanager
def guardian_of(cluster: Cluster) -> Iterator[Elsewhere]:
    command = [*APART, sys.executable, "-m", "tests.live.broker.guardian_elsewhere", str(cluster.directory)]
    command += [cluster.cluster_id, f"{cluster.zookeeper}{cluster.chroot}"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Elsewhere(process)
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)


def test_a_broker_that_lives_in_another_namespace_is_not_taken_for_dead(start_cluster: StartCluster) -> None:
    """Nor somebody else for it; and once it has ended it is told once, and started again."""
    cluster = start_cluster(brokers=1)
    first = cluster.store.read_brokers().brokers[1].incarnation
    with guardian_of(cluster) as guardian:
        assert guardian.tells("adopted") == first
        for _ in range(RENEWALS):
            guardian.tells("renewed")
        cluster.kill(1)
        assert guardian.tells("died") == first
        assert not [line for line in guardian.told[:-1] if line.startswith(("died", "started"))]
        second = guardian.tells("started")
        assert second != first
        guardian.say("stop")
        guardian.tells("stopped")
        assert [line for line in guardian.told if line.startswith("died")] == [f"died {first}"]


def test_it_is_stopped_by_asking_it(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=1)
    with guardian_of(cluster) as guardian:
        guardian.tells("adopted")
        guardian.say("stop")
        assert cluster.processes[1].wait(TIMEOUT_S) == 0
        guardian.tells("stopped")
        assert not [line for line in guardian.told if line.startswith("started")]
