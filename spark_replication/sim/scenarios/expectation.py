"""What scenario files are made of: keys that are known, values of a kind, and matchers that stand for several values.

A misspelt key, event, topic, broker or field is a BadScenario that names it, so a misspelt expectation never passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any


class BadScenario(Exception):
    """The file itself is wrong; nothing can be said of the rules."""


class Mismatch(Exception):
    """An expectation does not hold."""

    def __init__(self, what: str, expected: object, found: object) -> None:
        super().__init__(what)
        self.what, self.expected, self.found = what, expected, found


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
    """Read a duration: `10s`, `500ms`, `1.5s`, `2m`, or a whole number of milliseconds."""
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
    """Whether a value is as expected. A set matches in any order, a list in its own. A matcher stands for several
    values."""
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
    """Check each named field. A field that does not exist is an error of the file."""
    for field, wanted in expect_keys(expected, where, set(found)).items():
        if not same(wanted, found[field]):
            raise Mismatch(f"{where}: {field}", wanted, _shown(found[field]))


def check_error(expected: Any, found: Any) -> None:
    """Check an error. Expected is a code, `none`, or `any`: a refusal with whatever code."""
    holds = found != "none" if expected == "any" else same(expected, found)
    if not holds:
        raise Mismatch("error", expected, found)


def _shown(found: Any) -> Any:
    return sorted(found) if isinstance(found, (set, frozenset)) else found
