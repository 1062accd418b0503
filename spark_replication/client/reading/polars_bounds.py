"""What a predicate of polars leaves to be read. Pure.

Polars shows what an expression is made of, and compares expressions, but does not say what one does. So each is made
again of its parts in every way that is known here: the one that gives the same says it. An expression that none of them
gives leaves everything. Whoever reads within the bounds filters by the predicate all the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from itertools import permutations
from typing import Any, Literal

import polars as pl

from spark_replication.client.reading.bounds import EVERYTHING, Bounds, Comparison, both, bounds
from spark_replication.messages.records import PARTITION

Closed = Literal["both", "left", "right", "none"]

COMPARISONS: Mapping[Comparison, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "==": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "in": pl.Expr.is_in,
}
#: How a range compares with its lower and with its upper end.
RANGES: Mapping[Closed, tuple[Comparison, Comparison]] = {
    "both": (">=", "<="),
    "left": (">=", "<"),
    "right": (">", "<="),
    "none": (">", "<"),
}


def predicate_bounds(predicate: pl.Expr, columns: Collection[str]) -> Bounds:
    """columns: those that bounds are about, unless the topic has own ones of these names."""
    match predicate.meta.pop():
        case [_, _] as parts:
            for one, other in permutations(parts):
                if _is(predicate, one & other):
                    return both(predicate_bounds(one, columns), predicate_bounds(other, columns))
                for comparison, made in COMPARISONS.items():
                    if _is(predicate, made(one, other)):
                        return _bounds(one, comparison, other, columns)
        case [_, _, _] as parts:
            for one, low, high in permutations(parts):
                for closed, (above, below) in RANGES.items():
                    if _is(predicate, one.is_between(low, high, closed=closed)):
                        return both(_bounds(one, above, low, columns), _bounds(one, below, high, columns))
    return EVERYTHING


def _is(one: pl.Expr, other: pl.Expr) -> bool:
    return one.meta.eq(other)


def _bounds(compared: pl.Expr, comparison: Comparison, other: pl.Expr, columns: Collection[str]) -> Bounds:
    column = next((name for name in columns if _is_column(compared, name)), None)
    if column is None or not other.meta.is_literal():
        return EVERYTHING
    (value, *more) = pl.select(other).to_series().to_list() or [None]
    if comparison != "in":
        return bounds(column, comparison, value) or EVERYTHING
    return _among(column, value if isinstance(value, list) else [value, *more])


def _is_column(expression: pl.Expr, name: str) -> bool:
    """SQL compares a partition's number as a larger integer."""
    column = pl.col(name)
    larger = (column.cast(pl.Int64, wrap_numerical=wraps) for wraps in (False, True))
    return any(_is(expression, each) for each in (column, *larger))


def _among(column: str, values: list[Any]) -> Bounds:
    """Bounds have no gaps between offsets, or times."""
    if not values or None in values:
        return EVERYTHING
    if column == PARTITION:
        return bounds(column, "in", values) or EVERYTHING
    ends = [bounds(column, ">=", min(values)), bounds(column, "<=", max(values))]
    return both(ends[0] or EVERYTHING, ends[1] or EVERYTHING)
