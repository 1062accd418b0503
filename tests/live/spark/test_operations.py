"""The guide's page of operations, done word for word on a cluster as its main job starts it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.spark.cluster_file import read_cluster_file
from tests.live.cluster.faults import stopped
from tests.live.spark.waiting import left_behind, wait_for

pytestmark = [pytest.mark.trust, pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "spark_replication/guide/operate.md").read_text()
SCHEMA = pa.schema([("id", pa.int64())])
SETTINGS = {
    "min.insync.replicas": 1,
    "zookeeper.session.ms": 3_000,
    "replica.lag.time.ms": 2_000,
    "broker.lease.ms": 10_000,
}
STOP_TIMEOUT_S = 90.0


class Person:
    """Whoever has that page, a shell in `home`, and a driver that somebody started there."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._job: subprocess.Popen[bytes] | None = None
        self.zookeeper = ""

    def starts(self, brokers: int) -> None:
        """The driver, which finds what lives already."""
        options = ["--brokers", str(brokers), "--no-load", "--detach-brokers"]
        for name, value in {**SETTINGS, "data.dir": self._home / ".data"}.items():
            options += ["--set", f"{name}={value}"]
        with (self._home / "job.log").open("ab") as output:
            command = [sys.executable, "jobs/start_cluster.py", *options]
            self._job = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        pid = self._job.pid

        def serves() -> bool:
            assert self._job is not None
            assert self._job.poll() is None, (self._home / "job.log").read_text()
            found = read_cluster_file(self._home / ".data")
            self.zookeeper = "" if found is None else found.zookeeper
            return found is not None and found.driver_pid == pid

        wait_for("the cluster", serves, 180)

    def ends(self) -> None:
        """Ctrl-C on the driver."""
        assert self._job is not None
        self._job.send_signal(signal.SIGINT)
        assert self._job.wait(STOP_TIMEOUT_S) == 0, (self._home / "job.log").read_text()
        self._job = None

    def does(self, line: str, *, code: int | None = 0, answers: str = "") -> str:
        """A line of the page. code: None = whatever it exits with."""
        assert line in PAGE.splitlines(), f"the page does not say: {line}"
        return self.tries(line, code=code, answers=answers)

    def tries(self, line: str, *, code: int | None = 0, answers: str = "") -> str:
        program, *arguments = shlex.split(line)
        assert program == "spark-replication"
        ran = subprocess.run(
            [sys.executable, "-m", "spark_replication", *arguments],
            cwd=self._home,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_REPLICATION_BOOTSTRAP": self.zookeeper},
            input=answers,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert code in (None, ran.returncode), (line, ran.stdout, ran.stderr)
        return ran.stdout

    def sees(self, line: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.tries(f"{line} --format json"))
        return found

    def gives_up(self) -> None:
        if self._job is not None and self._job.poll() is None:
            self._job.kill()
            self._job.wait()


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    found = Person(tmp_path)
    try:
        found.starts(3)
        yield found
        found.ends()
    finally:
        found.gives_up()
        _end_all(tmp_path)


def _end_all(home: Path) -> None:
    """What the last driver has left serving."""
    for pid in left_behind(home):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def pid_of(home: Path, broker: int) -> int:
    return int(json.loads((home / f".data/logs/broker-{broker}/broker.json").read_text())["pid"])


def test_an_operator_who_has_the_guide_alone(person: Person, tmp_path: Path) -> None:
    with sr.Admin(person.zookeeper) as admin, sr.Producer(person.zookeeper) as producer:
        admin.create_topic("orders", SCHEMA, partitions=6, replication_factor=2)
        for number in range(6):
            producer.send("orders", pa.record_batch({"id": [1, 2, 3]}, schema=SCHEMA), partition=number).result(30)
    wait_for("health", lambda: person.does("spark-replication health", code=None).startswith("healthy"))

    def orders_3() -> dict[str, Any]:
        return next(each for each in person.sees("spark-replication partitions orders") if each["partition"] == 3)

    leader, follower = orders_3()["replicas"]
    with stopped(pid_of(tmp_path, follower)):
        wait_for("the follower to leave the ISR", lambda: orders_3()["isr"] == [leader])
        with stopped(pid_of(tmp_path, leader)):
            wait_for("nobody to lead", lambda: orders_3()["leader"] is None)
            with suppress(ProcessLookupError):
                os.kill(pid_of(tmp_path, follower), signal.SIGCONT)
            wait_for("the follower", lambda: follower in {b["id"] for b in _live(person)})

            # Find the leaderless partition, see why, and elect.
            assert "without a leader (orders-" in person.does("spark-replication health", code=2)
            leaderless = person.does("spark-replication partitions --leaderless")
            assert "orders" in leaderless
            assert str(leader) in person.does("spark-replication topics describe orders")
            chosen = person.does("spark-replication leader elect --kind longest_log_proactive orders-3", answers="y\n")
            assert "orders-3" in chosen
            wait_for("who is elected", lambda: orders_3()["leader"] == follower)
            assert "unclean_recovery" in person.does("spark-replication partitions --unclean")

    # What may be lost is shown until somebody has taken note of it.
    assert "orders-3 may have lost acknowledged records" in person.does("spark-replication health", code=None)
    person.does("spark-replication partitions --possible-loss")
    assert [each["partition"] for each in person.sees("spark-replication partitions --possible-loss")] == [3]
    person.does("spark-replication leader acknowledge-loss orders-3")
    wait_for("health", lambda: person.does("spark-replication health", code=None).startswith("healthy"))

    # Who caused it?
    events = person.sees("spark-replication mirror events orders-3")
    (elected,) = [each for each in events if each["kind"] == "elected" and each["why"] == "unclean_recovery"]
    followed = person.sees(f"spark-replication mirror events --cause {elected['cause']}")
    assert any(
        "longest_log_proactive" in each["because"] or "told of its logs" in each["because"] for each in followed
    ), json.dumps(followed)

    # Add a broker, and move a third of the partitions to it.
    person.ends()
    person.starts(4)
    assert "orders" in person.does("spark-replication reassign plan --add 4 --save plan.json")
    moved = person.does("spark-replication reassign apply plan.json --wait 3600")
    assert "have ended their move" in moved
    assert {b["id"]: b["replicas"] for b in _live(person)} == {1: 3, 2: 3, 3: 3, 4: 3}

    # Drain it again, and stop it.
    assert "it may be stopped" in person.does("spark-replication brokers drain 4 --wait 3600")
    person.ends()
    person.starts(3)
    wait_for("broker 4 to stop", lambda: {b["id"] for b in _live(person)} == {1, 2, 3}, 60)
    assert "healthy" in person.does("spark-replication health")

    # Rebuild the mirror.
    for file in (tmp_path / ".data/mirror/brokers").rglob("*"):
        if file.is_file():
            file.unlink()
    person.does("spark-replication mirror rebuild")
    assert "fresh" in person.does("spark-replication mirror status")


def _live(person: Person) -> list[dict[str, Any]]:
    return [each for each in person.sees("spark-replication brokers") if each["state"] == "live"]
