"""Settings: where a program finds them, and as they are handed to another process."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replication.client.finding.settings_file import given_settings, overrides_of
from spark_replication.config import settings_from


def test_what_is_handed_to_another_process_is_what_differs_from_the_defaults() -> None:
    settings = settings_from({"min.insync.replicas": 1, "segment.bytes": 256 << 20})
    assert overrides_of(settings) == {"min.insync.replicas": 1}
    assert settings_from(overrides_of(settings)) == settings


def test_files_are_named_absolutely_for_a_process_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = settings_from({"security.token.file": "secrets/token", "mirror.storage.file": "/etc/store"})
    assert overrides_of(settings) == {
        "security.token.file": str(tmp_path / "secrets" / "token"),
        "mirror.storage.file": "/etc/store",
    }


def test_each_value_comes_from_the_last_layer_that_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text("[retention]\nms = 1\nbytes = 2\n[segment]\nms = 3\n[flush]\nthreads = 4\n")
    monkeypatch.setenv("SPARK_REPLICATION_RETENTION_BYTES", "5")
    monkeypatch.setenv("SPARK_REPLICATION_SEGMENT_MS", "6")
    found = given_settings("own.toml", {"segment.ms": 7})
    assert (found.settings.retention_ms, found.settings.retention_bytes, found.settings.segment_ms) == (1, 5, 7)
    assert found.origins == {
        "retention.ms": f"file {tmp_path / 'own.toml'}",
        "retention.bytes": "environment SPARK_REPLICATION_RETENTION_BYTES",
        "segment.ms": "--set",
        "flush.threads": f"file {tmp_path / 'own.toml'}",  # though it is the default
    }


def test_what_a_program_gives_is_the_programs() -> None:
    assert given_settings({"retention.ms": 1}).origins == {"retention.ms": "program"}
    assert given_settings(None).origins == {}
