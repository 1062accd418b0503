"""What delta-rs is told of an object store: from one file that few may read."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replication.config import Settings, settings_from
from spark_replication.errors import InvalidConfig
from spark_replication.mirror.delta.object_store import PATIENCE, read_store_options

BUCKET = "s3a://lake/mirror"


def settings(file: Path, path: str = BUCKET) -> Settings:
    return settings_from({"mirror.path": path, "mirror.storage.file": str(file)})


def test_options_are_the_files_and_a_patience_that_it_may_change(tmp_path: Path) -> None:
    file = tmp_path / "store.toml"
    file.touch(0o600)
    file.write_text('aws_secret_access_key = "s=cret"\naws_allow_http = true\nmax_retries = 5\n')
    assert read_store_options(settings(file)) == {
        **PATIENCE,
        "aws_secret_access_key": "s=cret",
        "aws_allow_http": "true",
        "max_retries": "5",
    }
    assert read_store_options(Settings()) == PATIENCE


@pytest.mark.parametrize(
    ("content", "mode", "path", "why"),
    [
        (b"aws_region = 'x'", 0o644, BUCKET, "is open to every user of this host: chmod o-rwx"),
        (b"aws_region = 'x'", 0o600, "/var/lake", "mirror.path=/var/lake names no object store"),
        (b"aws_region = 'x'", 0o600, "", "mirror.path= names no object store"),
        (b"aws_region: x", 0o600, BUCKET, "is no TOML"),
        (b"\xff = 1", 0o600, BUCKET, "is no TOML"),
        (b" \n", 0o600, BUCKET, "is empty"),
        (b"[aws]\nregion = 'x'\n", 0o600, BUCKET, r"has tables or lists \(aws\): each option is one value"),
        (b"azure = [1]\naws = {}", 0o600, BUCKET, r"has tables or lists \(aws, azure\)"),
    ],
)
def test_a_file_that_will_not_do(tmp_path: Path, content: bytes, mode: int, path: str, why: str) -> None:
    file = tmp_path / "store.toml"
    file.touch()
    file.chmod(mode)
    file.write_bytes(content)
    with pytest.raises(InvalidConfig, match=why):
        read_store_options(settings(file, path))


def test_a_mode_is_of_folders_alone() -> None:
    with pytest.raises(InvalidConfig, match=r"mirror\.files\.mode=700 is of a folder, and .* is an object store"):
        read_store_options(settings_from({"mirror.path": BUCKET, "mirror.files.mode": "700"}))
    assert read_store_options(settings_from({"mirror.path": "/var/lake", "mirror.files.mode": "700"})) == PATIENCE


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"mirror\.storage\.file=.*none.toml cannot be read: No such file"):
        read_store_options(settings(tmp_path / "none.toml"))
