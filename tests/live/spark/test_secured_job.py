"""The main job in mode token: guardians on executors, brokers, controller and command line speak to each other."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark_replication.live.guarding.broker_file import read_broker_file
from spark_replication.spark.cluster_file import ClusterFile, read_cluster_file
from tests.live.spark.waiting import wait_for
from tests.unit.transport.test_security import SECRET, token_settings

pytestmark = [pytest.mark.trust, pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 90.0


def test_the_main_job_runs_with_a_token(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "job.log"
    settings = token_settings(tmp_path)
    assigned = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with log.open("wb") as output:
        command = [sys.executable, "jobs/start_cluster.py", "--set", f"data.dir={data}", *assigned]
        job = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:

        def ready() -> ClusterFile | None:
            assert job.poll() is None, log.read_text()
            return read_cluster_file(data)

        wait_for("the cluster", ready, START_TIMEOUT_S)
        broker = read_broker_file(data / "logs" / "broker-1")
        assert broker is not None
        bootstrap = f"{broker.host}:{broker.port}"

        def listed(*options: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "spark_replication", "topics", "-b", bootstrap, *options]
            return subprocess.run(
                [*command, "--format", "json"], capture_output=True, text=True, check=False, timeout=60
            )

        def topics() -> object:
            found = listed(*assigned)
            assert found.returncode == 0, found.stderr
            return json.loads(found.stdout)

        wait_for("the load's topic", topics)
        refused = listed()
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "AUTHENTICATION_FAILED" in refused.stderr
        job.send_signal(signal.SIGINT)
        assert job.wait(STOP_TIMEOUT_S) == 0, log.read_text()
        files = [path for path in (log, *data.rglob("*")) if path.is_file()]
        assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    finally:
        if job.poll() is None:
            job.send_signal(signal.SIGINT)  # it takes its brokers and ZooKeeper along
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(STOP_TIMEOUT_S)
            job.kill()
            job.wait()
