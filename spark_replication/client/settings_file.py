"""Settings as a program finds them: a file, then the environment, then what was said besides."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_replication.config import Settings, from_environment, settings_from
from spark_replication.errors import InvalidConfig


def read_settings(config: str | Path | Mapping[str, Any] | None, *layers: Mapping[str, Any]) -> Settings:
    """Of a TOML file or a mapping, then SPARK_REPLICATION_… of the environment, then further layers."""
    given: Mapping[str, Any] = {}
    if isinstance(config, Mapping):
        given = config
    elif config is not None:
        try:
            given = tomllib.loads(Path(config).read_text())
        except OSError as error:
            raise InvalidConfig(f"{config} cannot be read: {error.strerror}") from error
        except tomllib.TOMLDecodeError as error:
            raise InvalidConfig(f"{config} is no TOML: {error}") from error
    return settings_from(given, from_environment(os.environ), *layers)
