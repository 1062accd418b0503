"""Which settings a process has in force, and where each value comes from.

A later layer lies over an earlier one: the default, the file, the environment, `--set`, the cluster's own settings, the
topic's. An origin is a text whose first word names the layer:

| origin                 | the value comes from                                                                     |
| ---------------------- | ---------------------------------------------------------------------------------------- |
| `default`              | spark_replication                                                                        |
| `file PATH`            | the file of settings that the process was started with                                   |
| `environment VARIABLE` | the environment of the program that started the process                                  |
| `--set`                | the command line of that program                                                         |
| `program`              | that program itself: a mapping that it was given, or a secret that it made               |
| `cluster`              | the cluster's own settings, in ZooKeeper (`settings set`)                                |
| `topic`                | the topic's own settings, in ZooKeeper (`topics configure`)                              |
| `caution`              | what loses no record, while the cluster's own cannot be read, or a clock is not believed |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from spark_replication.config import FILE_ENDING, Settings, described, settings_from
from spark_replication.messages.observing import SettingInForce
from spark_replication.model import Scalar

DEFAULT, SET, PROGRAM, CLUSTER, TOPIC, CAUTION = "default", "--set", "program", "cluster", "topic", "caution"
SET_SHOWN = "(set)"  # in place of the value of a setting that names a file, which may be one of secrets


class GivenSettings(msgspec.Struct, frozen=True):
    """The settings that a process is started with, and where they come from."""

    settings: Settings
    #: The origin of each setting that a layer has given, even if it gave the default.
    origins: Mapping[str, str] = {}


def given(*layers: tuple[Mapping[str, Scalar], Mapping[str, str]]) -> GivenSettings:
    """layers: the settings of each, and the origin of each setting."""
    origins: dict[str, str] = {}
    for _settings, of_layer in layers:
        origins.update(of_layer)
    return GivenSettings(settings_from(*(settings for settings, _origins in layers)), origins)


def in_force(settings: Settings, origins: Mapping[str, str]) -> tuple[SettingInForce, ...]:
    """All settings, sorted by name. A value without an origin that is no default is the program's."""
    values = msgspec.to_builtins(settings)
    return tuple(
        SettingInForce(
            name=each.name,
            value=shown(each.name, values[each.name]),
            origin=origins.get(each.name) or (DEFAULT if values[each.name] == each.default else PROGRAM),
        )
        for each in described()
    )


def over(origins: Mapping[str, str], names: Iterable[str], origin: str) -> dict[str, str]:
    """The origins once these settings come from `origin`."""
    return {**origins, **dict.fromkeys(names, origin)}


def cautious(before: Settings, after: Settings) -> list[str]:
    """The settings by which these two differ: what caution has changed."""
    was, found = msgspec.to_builtins(before), msgspec.to_builtins(after)
    return [name for name, value in found.items() if value != was[name]]


def shown(name: str, value: Scalar) -> Scalar:
    """The value as others may see it."""
    return SET_SHOWN if name.endswith(FILE_ENDING) and value else value


def all_shown(settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {name: shown(name, value) for name, value in sorted(settings.items())}
