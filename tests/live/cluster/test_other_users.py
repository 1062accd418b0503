"""What other users of the host find of a cluster: nothing to read, and nothing to lock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_replication as sr
from tests.live.cluster.sides import MODES, sides

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user"),
]

SCHEMA = pa.schema([("words", pa.string())])
DEADLINE_S = 60.0
ANOTHER = 65_534
LOOKS = f"""
import fcntl, os, sys
os.setgroups([])
os.setgid({ANOTHER})
os.setuid({ANOTHER})
def tries(path):
    try:
        if os.path.isdir(path):
            return os.listdir(path)
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return "opened"
    except OSError as error:
        return type(error).__name__
for path in sys.argv[1:]:
    print(path, tries(path))
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    """Where every user may look."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=MODES)
def settings(request: pytest.FixtureRequest, directory: Path) -> dict[str, Any]:
    serving, _ = sides(request.param, directory)
    return serving


def test_nobody_else_reads_a_row_or_holds_a_lock(directory: Path, settings: dict[str, Any]) -> None:
    data = directory / "data"
    config = {"min.insync.replicas": 1, "page.enabled": False, **settings}
    with sr.LocalCluster.start(brokers=1, directory=data, config=config) as cluster:
        cluster.admin.create_topic("orders", SCHEMA, partitions=1, replication_factor=1)
        with sr.Producer(cluster.bootstrap, security=cluster.security) as producer:
            producer.send("orders", pa.record_batch({"words": ["a secret"]}, SCHEMA), 0).result(DEADLINE_S)
        (segment,) = [path for path in data.rglob("*.arrow") if b"a secret" in path.read_bytes()]
        own = ("security.token.file", "security.tls.key.file")
        files = [
            segment,
            *(data / "logs/broker-1" / name for name in ("", "lock", "lease.json", "broker.json", "broker.log")),
            *(data / "zookeeper" / name for name in ("", "lock", "login", "zoo.cfg", "data", "log")),
            *(data / "zookeeper" / "tls" / name for name in ("", "ca.pem", "client.key", "client.pem", "server.pem")),
            *(data / "controller" / name for name in ("", "lock", "log")),
            data / "attempts.lock",
            data / "broker-token",
            *(Path(settings[name]) for name in own if name in settings),
        ]
        assert all(path.exists() for path in files)
        looked = subprocess.run(
            [sys.executable, "-c", LOOKS, *map(str, files)],
            capture_output=True,
            text=True,
            check=True,
            timeout=DEADLINE_S,
            cwd="/",
        )
        assert looked.stdout.splitlines() == [f"{path} PermissionError" for path in files]
