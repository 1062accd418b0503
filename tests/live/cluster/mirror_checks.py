"""Whether a cluster's tables are as ZooKeeper is, and its events a chain to that."""

from __future__ import annotations

import subprocess
import sys

import spark_replication as sr
from spark_replication.mirror.asking.load import TABLES, read_events, read_partitions, read_table
from spark_replication.mirror.tables.columns import Key
from spark_replication.mirror.tables.events import face_of, subject_of
from spark_replication.view.health import problems, without_what_waits_for_people


def verify(cluster: sr.LocalCluster, *options: str, wait_s: int = 30) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spark_replication", "mirror", "verify", "-b", cluster.zookeeper]
    command += ["--path", cluster.mirror_path, "--wait", str(wait_s), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def assert_agrees(cluster: sr.LocalCluster) -> None:
    told = verify(cluster)
    assert told.returncode == 0, told.stdout + told.stderr


def shown(cluster: sr.LocalCluster, topic: str) -> int:
    topics: list[str] = read_partitions(cluster.mirror_path)["topic"].to_pylist()
    return topics.count(topic)


def assert_chains(cluster: sr.LocalCluster, topics: str) -> None:
    """The events of each row follow each other without a gap, and end with what the tables show. topics: how their
    names begin; of others somebody may have changed rows by hand."""
    ends: dict[tuple[str, Key], str | None] = {}
    for event in read_events(cluster.mirror_path).to_pylist():
        subject = subject_of(event)
        if subject is not None and (event["topic"] or topics).startswith(topics):
            assert ends.get(subject) == event["was"], event
            ends[subject] = event["became"]
    for name, table in TABLES.items():
        assert table.tells is not None
        rows = read_table(name, cluster.mirror_path).to_pylist()
        for row in (row for row in rows if row.get("topic", topics).startswith(topics)):
            found = face_of(ends.pop((name, tuple(row[column] for column in table.key))))
            assert found == {column: row[column] for column in table.tells.columns}
    assert set(ends.values()) <= {None}


def commands_after(cluster: sr.LocalCluster, pid: int) -> bool:
    """What waits for people, such as the logs of topics that went while a broker was away, is left to them."""
    if cluster.controller_pid in (None, pid):
        return False
    return not problems(without_what_waits_for_people(cluster.admin.metadata()), frozenset(cluster.brokers))
