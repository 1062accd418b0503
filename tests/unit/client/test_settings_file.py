"""Settings as they are handed to another process."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replication.client.settings_file import overrides_of
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
