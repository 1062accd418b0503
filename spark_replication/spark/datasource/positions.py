"""Where in its topics a read begins and ends: one place or time for all partitions, or a place for each. Pure.

As text: `earliest`, `latest`, or JSON by partition: `{"0": 17, "1": "earliest"}`. Kafka's form is taken too, and names
topics: `{"orders": {"0": 17, "1": -2}}`, with -2 for earliest and -1 for latest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, cast, get_args

import msgspec

from spark_replication.core.replica.read_start import time_in_ms
from spark_replication.errors import InvalidRequest
from spark_replication.model import OFFSET_MAX, AtTime, NamedOffset, Offset, number_of, shortened

Place = Offset | NamedOffset


class ByTopic(msgspec.Struct, frozen=True):
    """Places by topic and partition."""

    places: dict[str, dict[int, Place]]


#: With a mapping, partitions that it does not name begin at their earliest offset, and end at their latest.
Position = NamedOffset | AtTime | dict[int, Place] | ByTopic

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
    if isinstance(found, dict) and found and all(isinstance(each, dict) for each in found.values()):
        return ByTopic({topic: _places(places) for topic, places in found.items()})
    return _places(found)


def parse_time(text: str) -> AtTime:
    """The time of a text: milliseconds since 1970, or ISO 8601 with a time zone."""
    if (time_ms := number_of(text.strip(), OFFSET_MAX)) is not None:
        return AtTime(time_in_ms(time_ms))
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise InvalidRequest("it is milliseconds since 1970, or a time as 2026-11-21T10:00:00Z") from error
    return AtTime(time_in_ms(moment))


def place_of(position: Position, topic: str, partition: int, *, otherwise: NamedOffset) -> Place | AtTime:
    told = _of_topic(position, topic)
    return told.get(partition, otherwise) if isinstance(told, Mapping) else told


def refuse_others(position: Position, partitions: Iterable[int], topic: str) -> None:
    """Raise InvalidRequest if the position names partitions of the topic that are not read."""
    known, told = sorted(partitions), _of_topic(position, topic)
    others = sorted(set(told) - set(known)) if isinstance(told, Mapping) else []
    if others:
        raise InvalidRequest(
            f"there are offsets of partitions {others}, and what is read of {topic} has {known}: name these"
        )


def refuse_other_topics(position: Position, topics: Iterable[str]) -> None:
    """Raise InvalidRequest if the position names topics that are not read, or none where several are."""
    known = sorted(topics)
    if isinstance(position, ByTopic) and (others := sorted(set(position.places) - set(known))):
        raise InvalidRequest(f"there are offsets of {', '.join(others)}, and what is read is {', '.join(known)}")
    if isinstance(position, Mapping) and len(known) > 1:
        example = json.dumps({topic: {"0": 17} for topic in known[:2]})
        raise InvalidRequest(f"there are offsets of partitions, and topics are read together: name each, as {example}")


def _of_topic(position: Position, topic: str) -> NamedOffset | AtTime | dict[int, Place]:
    return position.places.get(topic, {}) if isinstance(position, ByTopic) else position


def _places(told: Any) -> dict[int, Place]:
    if not isinstance(told, dict) or not told:
        raise InvalidRequest(f"it is {_FORMS}")
    return {_partition(number): _place(place) for number, place in told.items()}


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
