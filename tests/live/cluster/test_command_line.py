"""Each verb on a live cluster, and what its JSON has: whoever writes a script goes by these names."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_replication as sr
from tests.live.cluster.faults import held_down, stopped
from tests.live.cluster.waiting import eventually
from tests.printed import printed

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

CONFIG = {"zookeeper.session.ms": 3_000, "replica.lag.time.ms": 2_000, "min.insync.replicas": 1}
SCHEMA = "id:int64,text:string"
BATCH_BYTES = 100_000
BYTES_PER_SECOND = 200_000
PROGRESS = re.compile(r"^\d of \d partitions have moved, [0-9.]+ \w+ of [0-9.]+ MiB are copied", re.MULTILINE)

PARTITION = {
    *("topic", "partition", "leader", "leader_epoch", "partition_epoch", "isr", "elr", "replicas", "min_isr"),
    *("elected", "possible_loss"),
}
BROKER = {
    *("id", "state", "leads", "replicas", "not_in_sync", "host", "port", "replication_port", "rack", "epoch"),
    "shutting_down",
}
TOPIC = {
    *("topic", "partitions", "replicas", "leaderless", "under_min_isr", "under_replicated", "schema_version"),
    "topic_id",
}
HEALTH = {
    *("verdict", "reasons", "incidents", "cluster_id", "controller", "brokers", "topics", "partitions", "leaderless"),
    *("under_min_isr", "under_replicated", "moving"),
}
REASON = {"severity", "what", "count", "subjects", "mend", "because", "cause", "since_ms"}
EVENT = {
    *("at", "kind", "topic", "partition", "broker", "was", "became", "leader", "leader_epoch", "why", "because"),
    *("cause", "number"),
}
DESCRIBED = {
    *("partition", "leader", "leader_epoch", "isr", "elr", "replicas", "min_isr", "start_at"),
    *(
        "last_known_elr",
        "last_known_leader",
        "high_watermark",
        "records",
        "bytes",
        "lag_records",
        "lag_ms",
        "last_change",
        "because",
    ),
}
SOON_S = 10.0  # of a command, its start included, on a busy machine
LOSS = {"partition", "since", "from_offset", "records_max", "first_epoch", "last_epoch", "error"}
ELECTED = {"partition", "leader_before", "leader", "leader_epoch", "elected", "error"}


class Shell:
    def __init__(self, bootstrap: str) -> None:
        self.environment = {**os.environ, "SPARK_REPLICATION_BOOTSTRAP": bootstrap}

    def typed(self, line: str) -> str:
        """A line of the guide, for whichever Python runs this."""
        return line.replace(".venv/bin/spark-replication", f"{sys.executable} -m spark_replication")

    def run(self, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "spark_replication", *map(str, arguments)]
        ran = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120, check=False)
        assert ran.returncode == code, (arguments, ran.stdout, ran.stderr)
        assert not {"\x1b", "\r"} & {*ran.stdout, *ran.stderr}, "no colour in a pipe, and no line is rewritten"
        assert "Traceback" not in ran.stderr
        return ran

    def starts(self, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "spark_replication", *map(str, arguments)]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def rows(self, *arguments: object, has: set[str], code: int = 0) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run(*arguments, "--format=json", code=code).stdout)
        assert all(set(row) == has for row in found)
        return found


@pytest.fixture(scope="module")
def shell(cluster: sr.LocalCluster) -> Shell:
    return Shell(cluster.bootstrap)


def test_a_topic_is_made_described_changed_and_ended(cluster: sr.LocalCluster, shell: Shell, tmp_path: Path) -> None:
    made = shell.run("topics", "create", "orders", "--schema", SCHEMA, "-p", 2, "-r", 3, "retention.ms=86400000")
    assert made.stdout == "orders has 2 partitions of 3 replicas each\n"
    assert "TOPIC_ALREADY_EXISTS" in shell.run("topics", "create", "orders", "--schema", SCHEMA, code=1).stderr
    assert shell.run("topics", "add-partitions", "orders", 3).stdout == "orders has 3 partitions\n"
    shell.run("topics", "configure", "orders", "min.insync.replicas=2", "retention.ms=")
    shell.run("topics", "widen", "orders", "more:float64")

    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"id": number, "text": "x", "more": None}) + "\n" for number in range(10)))
    shell.run("produce", "orders", file, "-p", 1)
    found: list[dict[str, Any]] = []

    def is_replicated() -> bool:
        found[:] = json.loads(shell.run("topics", "describe", "orders", "--format=json").stdout)
        return bool(
            found[0]["partitions"][1]["lag_records"] == {str(b): 0 for b in found[0]["partitions"][1]["isr"][1:]}
        )

    eventually(is_replicated, "followers have all records")
    (orders,) = found
    assert orders.keys() == {
        *("topic", "topic_id", "schema_version", "schema", "partitions"),
        *("settings", "settings_in_force", "settings_unknown"),
    }
    told = {each["setting"]: (each["value"], each["from"]) for each in orders["settings_in_force"]}
    assert (told["min.insync.replicas"], told["compression"]) == ((2, "topic"), ("none", "default"))
    assert orders["settings_unknown"] == ""
    assert orders["schema"] == ["id:int64", "text:string", "more:double"]
    assert (orders["settings"], orders["schema_version"]) == ({"min.insync.replicas": 2}, 1)
    assert all(each.keys() == DESCRIBED for each in orders["partitions"])
    assert [each["records"] for each in orders["partitions"]] == [0, 10, 0]
    table = shell.run("topics", "describe", "orders").stdout
    assert "settings  min.insync.replicas=2" in table

    (listed,) = shell.rows("topics", has=TOPIC)
    assert (listed["topic"], listed["partitions"], listed["replicas"], listed["leaderless"]) == ("orders", 3, 3, 0)
    assert len(shell.rows("partitions", "orders", has=PARTITION)) == 3
    assert shell.run("topics", "remove-partitions", "orders", 2, "--yes").stdout == "orders has 2 partitions\n"
    asked = shell.run("topics", "delete", "orders", code=1)
    assert "delete orders with all its records?" in asked.stderr
    assert shell.run("topics", "delete", "orders", "--yes").stdout == "orders is deleted\n"
    assert shell.rows("topics", has=TOPIC) == []


def test_what_is_wrong_is_told_with_its_cause_and_mended_by_hand(cluster: sr.LocalCluster, shell: Shell) -> None:
    assert shell.run("health").stdout.startswith("healthy  3 brokers, 0 topics, 0 partitions")
    schema = pa.schema([("id", pa.int64())])
    cluster.admin.create_topic("solo", schema, partitions=2, replication_factor=2)
    cluster.admin.reassign({"solo-0": [1, 2], "solo-1": [3, 1]})
    cluster.admin.wait_reassigned(["solo-0", "solo-1"], 60)
    shell.run("leader", "elect")
    assert shell.rows("leader", "elect", has=ELECTED) == []

    def partition() -> dict[str, Any]:
        return next(each for each in shell.rows("partitions", has=PARTITION) if each["partition"] == 0)

    def events(*about: object) -> list[dict[str, Any]]:
        """Asked of the cluster: where its tables lie is not said."""
        return shell.rows("mirror", "events", *about, has=EVENT)

    with stopped(cluster.brokers[2].pid):
        eventually(lambda: partition()["isr"] == [1], "broker 2 leaves the ISR")
        found = json.loads(shell.run("health", "--format=json", code=1).stdout)
        assert (found.keys(), found["verdict"], found["under_replicated"]) == (HEALTH, "degraded", 1)
        assert all(reason.keys() == REASON for reason in found["reasons"])
        assert [each["what"] for each in found["incidents"]] == ["1 of 3 brokers is dead: 2"]
        (of_partition,) = (reason for reason in found["reasons"] if reason["subjects"] == ["solo-0"])
        assert (of_partition["what"], of_partition["mend"]) == ("has 1 of 2 replicas in sync", "start broker 2")
        assert "2" in of_partition["because"] or "ISR" in of_partition["because"]
        assert [each["partition"] for each in shell.rows("partitions", "--under-replicated", has=PARTITION)] == [0]
        assert shell.rows("partitions", "--leaderless", has=PARTITION) == []
        eventually(lambda: "gone" in {each["kind"] for each in events("--broker", 2)}, "the mirror tells of it")
        (shrunk,) = events("solo-0", "--last", 1)
        assert (shrunk["became"]["isr"], shrunk["cause"] is not None) == ([1], True)
        assert shrunk in events("--cause", shrunk["cause"])
        assert "isr [1, 2] → [1]" in shell.run("mirror", "events", "solo-0").stdout
        states = {each["id"]: each["state"] for each in shell.rows("brokers", has=BROKER)}
        assert states == {2: "gone", 1: "live", 3: "live"}
        with stopped(cluster.brokers[1].pid):
            eventually(lambda: partition()["leader"] is None, "nobody leads")
            os.kill(cluster.brokers[2].pid, signal.SIGCONT)
            eventually(lambda: 2 in {b.id for b in cluster.admin.describe_cluster().brokers}, "broker 2 is back")
            told = shell.run("health", code=2).stdout
            assert "critical  1 of 3 brokers is dead: 1\n    so: 1 partition without a leader (solo-0)" in told
            assert "spark-replication leader elect --kind longest_log_proactive solo-0" in told
            assert [each["partition"] for each in shell.rows("partitions", "--leaderless", has=PARTITION)] == [0]
            refused = shell.run("leader", "elect", "--kind", "unclean", "solo-0", code=1)
            assert "elect all the same?" in refused.stderr
            (chosen,) = shell.rows("leader", "elect", "--kind", "unclean", "solo-0", "--yes", has=ELECTED)
            assert (chosen["leader_before"], chosen["leader"], chosen["error"]) == (None, 2, None)
            assert [each["partition"] for each in shell.rows("partitions", "--unclean", has=PARTITION)] == [0]
    cluster.wait_healthy()
    told = shell.run("health", code=1).stdout
    assert "warning  solo-0 may have lost acknowledged records from " in told
    assert [each["partition"] for each in shell.rows("partitions", "--possible-loss", has=PARTITION)] == [0]
    (advice,) = re.findall(r"mend: once .*:\n +spark-replication (leader acknowledge-loss solo-0)$", told, re.MULTILINE)
    (acknowledged,) = shell.rows(*advice.split(), has=LOSS)
    assert (acknowledged["last_epoch"], acknowledged["error"]) == (chosen["leader_epoch"], None)
    again = shell.run(*advice.split(), code=1)
    assert "solo-0 shows no possible loss" in again.stderr
    assert shell.run("health").stdout.startswith("healthy")


def test_what_health_prints_mends_a_partition_whose_only_replica_is_lost(
    cluster: sr.LocalCluster, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cluster.wait_healthy()
    cluster.admin.create_topic("only", pa.schema([("id", pa.int64())]), partitions=1, replication_factor=1)
    cluster.admin.reassign({"only-0": [3]})
    cluster.admin.wait_reassigned(["only-0"], 60)

    def reason() -> dict[str, Any] | None:
        found = cluster.admin.health().reasons
        return next(({"mend": each.mend} for each in found if each.subjects == ("only-0",)), None)

    def partition() -> dict[str, Any]:
        return next(row for row in shell.rows("partitions", has=PARTITION) if row["topic"] == "only")

    with held_down(cluster, 3):
        eventually(lambda: "start broker 3;" in (reason() or {}).get("mend", ""), "health says what mends it")
        commands = re.findall(r"spark-replication ([^;]+)", (reason() or {})["mend"])
        assert [command.split()[0] for command in commands] == ["reassign", "reassign", "leader"]
        for command in commands:
            shell.run(*command.split(), *(["--yes"] if command.startswith("leader") else []))
        eventually(lambda: (partition()["leader"], partition()["replicas"]) == (1, [1]), "it has left broker 3")
        # That it began anew, empty, is told until somebody says that it is known.
        (command,) = re.findall(r"spark-replication ([^;]+)", (reason() or {})["mend"])
        shell.run(*command.split())
        assert reason() is None
    cluster.admin.delete_topic("only")
    cluster.wait_healthy()


def test_a_broker_is_drained_and_gets_its_share_again(cluster: sr.LocalCluster, shell: Shell, tmp_path: Path) -> None:
    cluster.wait_healthy()
    shell.run("topics", "create", "drained", "--schema", SCHEMA, "-p", 3, "-r", 2)
    fill(cluster, "drained", partitions=3)
    planned = shell.run("brokers", "drain", 3, "--dry-run")
    assert "partitions change" in planned.stdout
    assert any(each["replicas"] for each in shell.rows("brokers", has=BROKER) if each["id"] == 3)

    cluster.admin.configure(None, {"reassignment.bytes.per.second": BYTES_PER_SECOND})
    drained = shell.run("brokers", "drain", 3, "--wait", 60)
    assert "broker 3 has no replica left: it may be stopped" in drained.stdout
    assert PROGRESS.search(drained.stderr), "it takes seconds, and says how far it is"
    assert "have moved," not in drained.stdout
    assert [each["replicas"] for each in shell.rows("brokers", has=BROKER) if each["id"] == 3] == [0]

    file = tmp_path / "plan.json"
    shell.run("reassign", "plan", "--over", "1,2,3", "-t", "drained", "--save", file)
    applied = shell.run("reassign", "apply", file, "--wait", 60)
    assert PROGRESS.search(applied.stderr)
    assert applied.stdout.endswith("partitions have ended their move\n")
    assert all(each["replicas"] for each in shell.rows("brokers", has=BROKER) if each["id"] == 3)
    cluster.admin.configure(None, {"reassignment.bytes.per.second": None})


def fill(cluster: sr.LocalCluster, topic: str, partitions: int) -> None:
    """A megabyte each, in batches that each take half a second at BYTES_PER_SECOND."""
    text = "x" * 1_000
    batch = pa.record_batch({"id": range(BATCH_BYTES // len(text)), "text": [text] * (BATCH_BYTES // len(text))})
    with sr.Producer(cluster.bootstrap) as producer:
        for _ in range(1_000_000 // BATCH_BYTES):
            # One after the other: what is sent together may be stored as one batch.
            for sent in [producer.send(topic, batch, partition=number) for number in range(partitions)]:
                sent.result(60)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("topics", "create", "x"), "--schema"),
        (("topics", "configure", "x"), "Name a setting"),
        (("topics", "describe"), "TOPIC"),
        (("brokers", "drain", "three"), "'three' is not a valid integer"),
        (("partitions", "--leaderles"), "--leaderless"),
        (("health", "--watch", "0"), "--watch"),
        (("helth",), "health"),
    ],
)
def test_wrong_usage_exits_with_2_and_a_hint(shell: Shell, arguments: tuple[str, ...], hint: str) -> None:
    refused = shell.run(*arguments, code=2)
    assert (refused.stdout, hint in refused.stderr) == ("", True)


def test_records_are_looked_at_as_the_guide_says(cluster: sr.LocalCluster, shell: Shell, tmp_path: Path) -> None:
    cluster.wait_healthy()
    shell.run("topics", "create", "orders", "--schema", "id:int64,amount:float64", "-p", 3, "-r", 3)
    tail, choose, follow, arrow = printed("start", ".venv/bin/spark-replication topics tail orders")
    following = subprocess.Popen(shell.typed(follow), shell=True, env=shell.environment, stdout=subprocess.PIPE)
    unbounded = [sys.executable, "-m", "spark_replication", "consume", "orders", "--follow", "--format", "json"]
    endless = subprocess.Popen(unbounded, env=shell.environment, stdout=subprocess.PIPE, text=True)
    assert following.stdout is not None
    assert endless.stdout is not None
    with sr.Producer(cluster.bootstrap) as producer:
        for number in range(12):
            rows = {"id": [number, 100 + number], "amount": [number, 10.0 * number]}
            producer.send("orders", rows, partition=number % 3).result(60)
    _, *shown = following.stdout.read().decode().splitlines()
    assert (len(shown), {int(line.split()[2]) for line in shown} <= {*range(106, 112)}) == (3, True)
    assert following.wait(60) == 0
    came = {json.loads(endless.stdout.readline())["id"] for _ in range(24)}
    assert came == {base + number for base in (0, 100) for number in range(12)}
    endless.send_signal(signal.SIGINT)
    assert (endless.communicate(timeout=60)[0], endless.returncode) == ("", 0)

    def types(line: str) -> list[str]:
        ran = subprocess.run(
            shell.typed(line),
            shell=True,
            env=shell.environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return [row for row in ran.stdout.splitlines() if row.startswith("│")]

    assert [row.split("│")[3].strip() for row in types(tail)] == ["109", "10", "110", "11", "111"]
    chosen = [row.split("│") for row in types(choose)]
    assert {row[1].strip() for row in chosen} == {"0", "2"}
    assert len(chosen) == 10
    assert types(arrow) == []
    with pa.ipc.open_stream(tmp_path / "orders.arrows") as stream:
        assert stream.read_all().num_rows == 24
    shell.run("topics", "delete", "orders", "--yes")


def test_while_no_broker_lives_the_controller_answers(cluster: sr.LocalCluster, shell: Shell) -> None:
    """By the bootstrap that outlives all brokers: in the worst night the shell sees what the page sees."""
    cluster.admin.create_topic("dark", pa.schema([("id", pa.int64())]), partitions=1, replication_factor=3)
    with ExitStack() as held:
        for broker in (1, 2, 3):
            held.enter_context(held_down(cluster, broker))

        def is_told() -> bool:
            began_s = time.monotonic()
            told = json.loads(shell.run("health", "-b", cluster.zookeeper, "--format=json", code=2).stdout)
            assert time.monotonic() - began_s < SOON_S
            return bool(told["brokers"] == 0 and told["leaderless"])

        eventually(is_told, "health says that nobody is there")
        found = shell.rows("partitions", "-b", cluster.zookeeper, has=PARTITION)
        (row,) = [each for each in found if each["topic"] == "dark"]
        assert (row["leader"], sorted(row["replicas"])) == (None, [1, 2, 3])
    cluster.wait_healthy()
    cluster.admin.delete_topic("dark")


def test_a_path_without_a_cluster_is_told_soon(cluster: sr.LocalCluster, shell: Shell) -> None:
    began_s = time.monotonic()
    told = shell.run("health", "-b", f"{cluster.zookeeper}-of-nobody", code=2)
    assert time.monotonic() - began_s < SOON_S
    assert "CLUSTER_NOT_FOUND" in told.stderr
    assert "ZooKeeper has no cluster below /" in told.stderr
