"""Runs scenario files. Each document of a file is a world, in which its steps happen one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
import yaml

from spark_replication.errors import InvalidConfig
from spark_replication.sim.scenarios.cluster_scenario import ClusterScenario
from spark_replication.sim.scenarios.expectation import BadScenario, Mismatch, expect_keys
from spark_replication.sim.scenarios.log_scenario import LogScenario


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
    """Run each scenario of the file up to its first expectation that does not hold."""
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
    keys = expect_keys(
        document, "the scenario", {"name", "log", "brokers", "config", "topics", "tables", "down", "steps"}
    )
    name = keys.get("name")
    if not isinstance(name, str) or not name.strip():
        raise BadScenario("a scenario needs a `name`: one sentence")
    world: World = LogScenario(keys) if "log" in keys else ClusterScenario(keys)
    steps = keys.get("steps")
    if not isinstance(steps, list) or not steps:
        raise BadScenario("a scenario needs `steps`: a list")
    for number, step in enumerate(steps, 1):
        try:
            _step(world, step, number)
        except Mismatch as mismatch:
            return Result(str(path), name, Failure(number, mismatch.what, mismatch.expected, mismatch.found))
    return Result(str(path), name, None)


class World(Protocol):
    """A cluster or a log. `check_names` refuses a step with an expectation that does not exist, whatever it says."""

    events: dict[str, Callable[[Any], None]]

    def check_names(self, expected: dict[Any, Any]) -> None: ...
    def happen(self, event: str, argument: Any) -> None: ...
    def expect(self, key: Any, wanted: Any) -> None: ...


def _step(world: World, step: Any, number: int) -> None:
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
    """Refuses a key that is given twice: the first would silently be ignored."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            raise yaml.YAMLError(f"{twice[0]!r} is there twice{node.start_mark}")
        return super().construct_mapping(node, deep=deep)
