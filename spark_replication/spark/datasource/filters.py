"""Conditions that Spark pushes down: those that brokers and tasks apply, so that Spark need not. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from spark_replication.client.reading.bounds import EVERYTHING, Bounds, Comparison, both, bounds


def pushed(filters: Iterable[Filter]) -> tuple[Bounds, list[Filter]]:
    """The conditions that are applied here, as one, and those that are left to Spark."""
    found, left = EVERYTHING, []
    for each in filters:
        taken = _taken(each)
        if taken is None:
            left.append(each)
        else:
            found = both(found, taken)
    return found, left


def _taken(condition: Filter) -> Bounds | None:
    told: tuple[str, Comparison, Any]
    match condition:
        case EqualTo((column,), value):
            told = column, "==", value
        case In((column,), values):
            told = column, "in", values
        case GreaterThan((column,), value):
            told = column, ">", value
        case GreaterThanOrEqual((column,), value):
            told = column, ">=", value
        case LessThan((column,), value):
            told = column, "<", value
        case LessThanOrEqual((column,), value):
            told = column, "<=", value
        case _:
            return None
    return bounds(*told)
