"""The settings of a program: how it reads them from a file and the environment, and hands them to other processes."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from spark_replication.config import FILE_ENDING, Settings, flattened, from_environment, variable_of
from spark_replication.core.settings_in_force import PROGRAM, SET, GivenSettings, given
from spark_replication.errors import InvalidConfig


def read_settings(config: str | Path | Mapping[str, Any] | None, *layers: Mapping[str, Any]) -> Settings:
    """Read settings from a TOML file or a mapping. SPARK_REPLICATION_… of the environment overrides them, and each
    further layer overrides what comes before it."""
    return given_settings(config, *layers).settings


def given_settings(config: str | Path | Mapping[str, Any] | None, *layers: Mapping[str, Any]) -> GivenSettings:
    """As `read_settings`, with where each value comes from. Each further layer is of `--set`."""
    file: Mapping[str, Any] = {}
    origin = PROGRAM
    if isinstance(config, Mapping):
        file = config
    elif config is not None:
        try:
            file = tomllib.loads(Path(config).read_text())
            origin = f"file {Path(config).absolute()}"
        except OSError as error:
            raise InvalidConfig(f"{config} cannot be read: {error.strerror}") from error
        except tomllib.TOMLDecodeError as error:
            raise InvalidConfig(f"{config} is no TOML: {error}") from error
    environment = from_environment(os.environ)
    return given(
        (file, dict.fromkeys(flattened(file), origin)),
        (environment, {name: f"environment {variable_of(name)}" for name in environment}),
        *((layer, dict.fromkeys(flattened(layer), SET)) for layer in layers),
    )


def overrides_of(settings: Settings) -> Mapping[str, Any]:
    """The settings that differ from the defaults, to be handed to another process. Paths of files become absolute: the
    other process may have another working directory."""
    defaults, given = msgspec.to_builtins(Settings()), msgspec.to_builtins(settings)
    return {
        name: str(Path(value).absolute()) if name.endswith(FILE_ENDING) else value
        for name, value in given.items()
        if value != defaults[name]
    }
