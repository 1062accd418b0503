"""How tables in an object store are reached (S3, Azure, Google Cloud, or a store with one of these interfaces).

Rules:
- The writer has delta-rs' options from mirror.storage.file. What is not there, delta-rs finds in the environment
  (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, …) or in the machine's role. Readers have the environment only: no bootstrap, no
  pickled LeaderTable and no table holds a secret.
- The store must refuse to put an object that is there already (S3: If-None-Match). If two controllers write one version
  of a table, the later one finds out by that.
- A store that does not answer is given up soon. The writer tries again, with what has changed meanwhile.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

from spark_replication.config import Settings
from spark_replication.errors import InvalidConfig
from spark_replication.mirror.delta.paths import is_remote
from spark_replication.process.files import Care, read_named

StoreOptions = Mapping[str, str]

PATIENCE: StoreOptions = {"timeout": "20s", "connect_timeout": "5s", "max_retries": "2", "retry_timeout": "20s"}


def read_store_options(settings: Settings) -> StoreOptions:
    if settings.mirror_files_mode and is_remote(settings.mirror_path):
        raise InvalidConfig(
            f"mirror.files.mode={settings.mirror_files_mode} is of a folder, and mirror.path={settings.mirror_path} is "
            "an object store: that says by itself who may read there"
        )
    return read_options_of(("mirror.path", settings.mirror_path), ("mirror.storage.file", settings.mirror_storage_file))


def read_options_of(place: tuple[str, str], file: tuple[str, str]) -> StoreOptions:
    """What opens this place. Both are a setting's name and its value. InvalidConfig: they do not fit, or the file will
    not do."""
    (of_place, path), (of_file, named) = place, file
    if not named:
        return PATIENCE
    if not is_remote(path):
        raise InvalidConfig(
            f"{of_file} is set, and {of_place}={path} names no object store, such as s3a://bucket/folder"
        )
    text = read_named(of_file, named, Care.SECRET)
    try:
        given = tomllib.loads(text.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidConfig(f"{of_file}={named} is no TOML: {error}") from error
    nested = sorted(name for name, value in given.items() if isinstance(value, dict | list))
    if nested:
        raise InvalidConfig(f"{of_file}={named} has tables or lists ({', '.join(nested)}): each option is one value")
    return {**PATIENCE, **{name: _as_text(value) for name, value in given.items()}}


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
