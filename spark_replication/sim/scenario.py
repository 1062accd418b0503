"""Scenario files: reading them, telling what holds, matching what was found against what was expected.

A misspelt key, event, topic, broker or field is a BadScenario that names it, so a misspelt expectation never passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import msgspec
import yaml

from spark_replication.errors import InvalidConfig


class BadScenario(Exception):
    """The file itself is wrong; nothing can be said of the rules."""


class Failure(msgspec.Struct, frozen=True):
    step: int
    what: str
    expected: object
    found: object

    def __str__(self) -> str:
        return f"  step {self.step}: {self.what}\n    expected {self.expected}\n    found    {self.found}"


class Result(msgspec.Struct, frozen=True):
    file: str
    name: str
    failure: Failure | None

    def __str__(self) -> str:
        line = f"{'ok  ' if self.failure is None else 'FAIL'} {self.file}: {self.name}"
        return line if self.failure is None else f"{line}\n{self.failure}"


class Mismatch(Exception):
    """An expectation does not hold."""

    def __init__(self, what: str, expected: object, found: object) -> None:
        super().__init__(what)
        self.what, self.expected, self.found = what, expected, found


def files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.suffix in (".yaml", ".yml"))
            if not found:
                raise BadScenario(f"{path} holds no .yaml file")
            yield from found
        elif path.is_file():
            yield path
        else:
            raise BadScenario(f"{path} is not there")


def run_file(path: Path) -> Iterator[Result]:
    """Each scenario of the file, run to its first expectation that does not hold."""
    try:
        documents = [found for found in yaml.load_all(path.read_text(), Loader=_Loader) if found is not None]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadScenario(f"{path} is no YAML: {error}") from error
    if not documents:
        raise BadScenario(f"{path} holds no scenario")
    for document in documents:
        try:
            yield _run(path, document)
        except (BadScenario, InvalidConfig, ValueError) as error:
            name = document.get("name") if isinstance(document, dict) else None
            raise BadScenario(f"{path}: {name or 'a scenario without name'}: {error}") from error


def _run(path: Path, document: Any) -> Result:
    # Both kinds import this module for their matchers.
    from spark_replication.sim.cluster_scenario import ClusterScenario
    from spark_replication.sim.log_scenario import LogScenario

    keys = expect_keys(document, "the scenario", {"name", "log", "brokers", "config", "topics", "down", "steps"})
    name = keys.get("name")
    if not isinstance(name, str) or not name.strip():
        raise BadScenario("a scenario needs a `name`: one sentence")
    world = LogScenario(keys) if "log" in keys else ClusterScenario(keys)
    steps = keys.get("steps")
    if not isinstance(steps, list) or not steps:
        raise BadScenario("a scenario needs `steps`: a list")
    for number, step in enumerate(steps, 1):
        try:
            _step(world, step, number)
        except Mismatch as mismatch:
            return Result(str(path), name, Failure(number, mismatch.what, mismatch.expected, mismatch.found))
    return Result(str(path), name, None)


def _step(world: Any, step: Any, number: int) -> None:
    if not isinstance(step, dict):
        raise BadScenario(f"step {number} is {step!r}, not an event")
    expected = step.get("expect", {})
    events = {key: value for key, value in step.items() if key != "expect"}
    if len(events) != 1:
        raise BadScenario(f"step {number} has {sorted(map(str, events))}: each step has one event")
    event, argument = next(iter(events.items()))
    if event not in world.events:
        raise BadScenario(f"step {number}: event {event!r} does not exist; there are {', '.join(sorted(world.events))}")
    if not isinstance(expected, dict):
        raise BadScenario(f"step {number}: `expect` holds keys and values, not {expected!r}")
    try:
        world.check_names(expected)
        world.happen(event, argument)
        for key, value in expected.items():
            world.expect(key, value)
    except BadScenario as error:
        raise BadScenario(f"step {number}: {error}") from error


class _Loader(yaml.SafeLoader):
    """A key given twice is an error: the first would silently hold nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            raise yaml.YAMLError(f"{twice[0]!r} is there twice{node.start_mark}")
        return super().construct_mapping(node, deep=deep)


# Reading


def expect_keys(
    value: Any, where: str, known: AbstractSet[str], required: AbstractSet[str] = frozenset()
) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadScenario(f"{where} is {value!r}, not keys and values")
    for key in value:
        if key not in known:
            raise BadScenario(f"{where}: unknown key {key!r}; known are {', '.join(sorted(known))}")
    for key in sorted(required):
        if key not in value:
            raise BadScenario(f"{where}: {key!r} is missing")
    return value


def expect_mapping(value: Any, where: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise BadScenario(f"{where} is {value!r}, not keys and values")
    return value


def expect_int(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadScenario(f"{where} is {value!r}, not a whole number")
    return value


def expect_ints(value: Any, where: str) -> list[int]:
    if not isinstance(value, list):
        raise BadScenario(f"{where} is {value!r}, not a list of whole numbers")
    return [expect_int(item, where) for item in value]


def milliseconds(value: Any, where: str) -> int:
    """`10s`, `500ms`, `1.5s`, `2m`, or a whole number of milliseconds."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    for unit, factor in (("ms", 1), ("s", 1_000), ("m", 60_000)):
        text = str(value)
        number = text.removesuffix(unit)
        if text != number and number.replace(".", "", 1).isdecimal():
            return round(float(number) * factor)
    raise BadScenario(f"{where} is {value!r}, not a duration such as 10s or 500ms")


# Matching

_MATCHERS: dict[str, Callable[[Any, Any], bool]] = {
    "one_of": lambda wanted, found: any(same(one, found) for one in wanted),
    "not": lambda wanted, found: not same(wanted, found),
    "size": lambda wanted, found: len(found) == wanted,
    "set": lambda wanted, found: set(found) == set(wanted),
    "within": lambda wanted, found: set(found) <= set(wanted),
    "has": lambda wanted, found: set(found) >= set(wanted),
}
_SIZED = {"size", "set", "within", "has"}
_LISTS = {"one_of", "set", "within", "has"}


def same(expected: Any, found: Any) -> bool:
    """A set found is matched in any order, a list in its own; a matcher stands for several values."""
    if isinstance(expected, dict) and len(expected) == 1 and next(iter(expected)) in _MATCHERS:
        name, wanted = next(iter(expected.items()))
        if name in _LISTS and not isinstance(wanted, list):
            raise BadScenario(f"matcher {name!r} takes a list, not {wanted!r}")
        if name in _SIZED and not isinstance(found, (list, set, frozenset, tuple)):
            raise BadScenario(f"matcher {name!r} is for lists: {found!r} is none")
        return _MATCHERS[name](wanted, found)
    if isinstance(expected, dict) and not isinstance(found, dict):
        raise BadScenario(f"{expected!r} is no matcher; there are {', '.join(sorted(_MATCHERS))}")
    if isinstance(found, (set, frozenset)):
        if not isinstance(expected, list):
            raise BadScenario(f"{expected!r} is compared with members: write a list")
        return set(expected) == found and len(set(expected)) == len(expected)
    if isinstance(found, tuple):
        return bool(expected == list(found))
    return bool(expected == found) and isinstance(expected, bool) == isinstance(found, bool)


def check_fields(where: str, expected: Any, found: Mapping[str, Any]) -> None:
    """Each field that is named holds; one that does not exist is an error of the file."""
    for field, wanted in expect_keys(expected, where, set(found)).items():
        if not same(wanted, found[field]):
            raise Mismatch(f"{where}: {field}", wanted, _shown(found[field]))


def _shown(found: Any) -> Any:
    return sorted(found) if isinstance(found, (set, frozenset)) else found
