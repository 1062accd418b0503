"""Where in a topic a read begins and ends: one place or time for all partitions, or a place for each. Pure.

As text: `earliest`, `latest`, or JSON by partition: `{"0": 17, "1": "earliest"}`. Kafka's form is taken too:
`{"orders": {"0": 17, "1": -2}}`, with -2 for earliest and -1 for latest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, cast, get_args

from spark_replication.core.replica.read_start import time_in_ms
from spark_replication.errors import InvalidRequest
from spark_replication.model import OFFSET_MAX, AtTime, NamedOffset, Offset, number_of, shortened

Place = Offset | NamedOffset
#: With a mapping, partitions that it does not name begin at their earliest offset, and end at their latest.
Position = NamedOffset | AtTime | dict[int, Place]

_NAMED = get_args(NamedOffset)
_OF_KAFKA: dict[int, NamedOffset] = {-2: "earliest", -1: "latest"}
_FORMS = 'earliest, latest, or JSON by partition, as {"0": 17, "1": "earliest"}'


def parse_positions(text: str) -> Position:
    if text.strip().lower() in _NAMED:
        return cast(NamedOffset, text.strip().lower())
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"it is {_FORMS}") from error
    if isinstance(found, dict) and len(found) == 1:
        (only,) = found.values()
        found = only if isinstance(only, dict) else found
    if not isinstance(found, dict) or not found:
        raise InvalidRequest(f"it is {_FORMS}")
    return {_partition(number): _place(place) for number, place in found.items()}


def parse_time(text: str) -> AtTime:
    """The time of a text: milliseconds since 1970, or ISO 8601 with a time zone."""
    if (time_ms := number_of(text.strip(), OFFSET_MAX)) is not None:
        return AtTime(time_in_ms(time_ms))
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise InvalidRequest("it is milliseconds since 1970, or a time as 2026-11-21T10:00:00Z") from error
    return AtTime(time_in_ms(moment))


def place_of(position: Position, partition: int, *, otherwise: NamedOffset) -> Place | AtTime:
    return position.get(partition, otherwise) if isinstance(position, Mapping) else position


def refuse_others(position: Position, partitions: Iterable[int], topic: str) -> None:
    """Raise InvalidRequest if the position names partitions that the topic does not have."""
    known = sorted(partitions)
    others = sorted(set(position) - set(known)) if isinstance(position, Mapping) else []
    if others:
        raise InvalidRequest(f"there are offsets of partitions {others}, and {topic} has {known}: name these")


def _partition(number: str) -> int:
    partition = number_of(number)
    if partition is None:
        raise InvalidRequest(f"{shortened(number)} is no partition: it is {_FORMS}")
    return partition


def _place(place: Any) -> Place:
    if isinstance(place, str) and place in _NAMED:
        return cast(NamedOffset, place)
    if isinstance(place, int) and not isinstance(place, bool) and place >= min(_OF_KAFKA):
        return _OF_KAFKA.get(place, place)
    raise InvalidRequest(f"{place!r} is no offset: it is {_FORMS}")
