"""Commands take the settings of security from --config, the environment and --set, in that order."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replication.transport.proofs.token import CLIENT
from spark_replication.transport.proofs.tokens import read_tokens
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.transport.test_security import SECRET, token_settings


@pytest.mark.parametrize("command", ["topics", "partitions", "brokers"])
def test_a_wrong_combination_is_refused_before_anybody_is_asked(run: Run, cluster: FakeCluster, command: str) -> None:
    done = run(command, "--bootstrap", cluster.bootstrap, "--set", "security.mode=token")
    assert (done.exit, done.out) == (1, "")
    assert done.err == "error: INVALID_CONFIG: security.mode=token needs security.token.file\n"


def test_a_later_source_goes_before_an_earlier_one(
    run: Run, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "conf.toml"
    config.write_text('security.mode = "token"\nsecurity.token.file = "/no/such/file"\n')
    topics = ("topics", "--bootstrap", cluster.bootstrap, "--format", "json", "--config", str(config))
    assert "/no/such/file cannot be read" in run(*topics).err
    token = token_settings(tmp_path)["security.token.file"]
    cluster.tokens = read_tokens("security.token.file", token, CLIENT)
    monkeypatch.setenv("SPARK_REPLICATION_SECURITY_TOKEN_FILE", token)
    done = run(*topics)
    assert (done.exit, done.err) == (0, "")
    assert SECRET not in done.out
    refused = run(*topics, "--set", "security.token.file=/another")
    assert "/another cannot be read" in refused.err
