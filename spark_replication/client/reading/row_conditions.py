"""Conditions on rows as a shell has them: "amount > 5", "_timestamp >= 2026-11-21T10:00:00Z", "item in tea,salt"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from spark_replication.errors import InvalidRequest

if TYPE_CHECKING:
    from spark_replication.client.reading.selection import Condition

_LISTS = ("in", "not in")
# The first operator counts, and of those at one place the longest.
_CONDITION = re.compile(r"(?P<column>.+?)(?:\s*(?P<sign>==|!=|<=|>=|=|<|>)|\s+(?P<word>not\s+in|in)\s)\s*(?P<value>.+)")
_SIGNS = "=!<>"


class ConditionText(NamedTuple):
    column: str
    comparison: str
    #: Several where the comparison takes a list.
    values: tuple[str, ...]

    def read_for(self, field: pa.Field) -> Condition:
        """The condition on this column. Raises InvalidRequest if a value is none of the column's type."""
        values = [_value(text, field) for text in self.values]
        return self.column, self.comparison, values if self.comparison in _LISTS else values[0]


def condition_text(text: str) -> ConditionText:
    found = _CONDITION.fullmatch(text.strip())
    if found is None or found["value"][0] in _SIGNS:  # a => 5 has no operator, though a string might begin like that
        raise InvalidRequest(
            f"{text!r} is no condition such as 'amount > 5' (in quotes): a column, one of = == != < <= > >= in, "
            "and a value, or several by commas; a value may have quotes of its own"
        )
    comparison = found["sign"] or " ".join(found["word"].split())
    texts = found["value"].split(",") if comparison in _LISTS else [found["value"]]
    if not all(each.strip() for each in texts):
        raise InvalidRequest(f"{text!r} has a comma without a value: give values as in 'item in tea,salt'")
    return ConditionText(found["column"], comparison, tuple(map(_unquoted, texts)))


def _unquoted(text: str) -> str:
    text = text.strip()
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if is_quoted else text


def _value(text: str, field: pa.Field) -> Any:
    try:
        return pa.scalar(text, pa.string()).cast(field.type).as_py()
    except pa.ArrowNotImplementedError as error:
        raise InvalidRequest(f"{field.name} is {field.type}, which no condition can compare: leave it out") from error
    except (pa.ArrowException, ValueError) as error:
        form = ""
        if pa.types.is_timestamp(field.type):
            form = f": give a time as 2026-11-21T10:00:00{'' if field.type.tz is None else 'Z'}"
        raise InvalidRequest(f"{field.name} is {field.type}, and {text!r} is none{form}") from error
