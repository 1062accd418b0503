"""The settings of a program: how it reads them from a file and the environment, and hands them to other processes."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from spark_replication.config import FILE_ENDING, Settings, from_environment, settings_from
from spark_replication.errors import InvalidConfig


def read_settings(config: str | Path | Mapping[str, Any] | None, *layers: Mapping[str, Any]) -> Settings:
    """Read settings from a TOML file or a mapping. SPARK_REPLICATION_… of the environment overrides them, and each
    further layer overrides what comes before it."""
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


def overrides_of(settings: Settings) -> Mapping[str, Any]:
    """The settings that differ from the defaults, to be handed to another process. Paths of files become absolute: the
    other process may have another working directory."""
    defaults, given = msgspec.to_builtins(Settings()), msgspec.to_builtins(settings)
    return {
        name: str(Path(value).absolute()) if name.endswith(FILE_ENDING) else value
        for name, value in given.items()
        if value != defaults[name]
    }
