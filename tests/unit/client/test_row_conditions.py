"""What a shell may say of rows, and what it becomes for a column of each type."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_replication.client.reading.log_batch import METADATA, TIMESTAMP
from spark_replication.client.reading.row_conditions import ConditionText, condition_text
from spark_replication.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "column", "comparison", "values"),
    [
        ("amount > 5", "amount", ">", ("5",)),
        ("  amount>=5  ", "amount", ">=", ("5",)),
        ("amount<=5", "amount", "<=", ("5",)),
        ("amount<-5", "amount", "<", ("-5",)),
        ("id != 5", "id", "!=", ("5",)),
        ("id==5", "id", "==", ("5",)),
        ("item = a=b, c", "item", "=", ("a=b, c",)),
        ("item = not in use", "item", "=", ("not in use",)),
        ("item = ' > 5'", "item", "=", (" > 5",)),
        ('item = ""', "item", "=", ("",)),
        ("item = '", "item", "=", ("'",)),
        ("item in tea, 'salt ',oil", "item", "in", ("tea", "salt ", "oil")),
        ("item  not  in tea", "item", "not in", ("tea",)),
        ("built in in 1", "built", "in", ("in 1",)),
        ("the price > 5", "the price", ">", ("5",)),
    ],
)
def test_a_condition_is_a_column_an_operator_and_values(
    text: str, column: str, comparison: str, values: tuple[str, ...]
) -> None:
    assert condition_text(text) == ConditionText(column, comparison, values)


@pytest.mark.parametrize("text", ["", "amount", "amount >", "> 5", "amount like 5", "amount => 5", "a === 5", "id in"])
def test_what_has_no_operator_or_no_value_is_no_condition(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no condition such as 'amount > 5'"):
        condition_text(text)


@pytest.mark.parametrize("text", ["id in 1,,2", "id in 1,", "id not in ,1"])
def test_a_comma_has_a_value_on_both_sides(text: str) -> None:
    with pytest.raises(InvalidRequest, match="a comma without a value"):
        condition_text(text)


TEN = datetime(2026, 11, 21, 10)
READ = [
    (pa.int8(), "-5", -5),
    (pa.float64(), "1e3", 1_000.0),
    (pa.decimal128(10, 2), "1.25", Decimal("1.25")),
    (pa.bool_(), "true", True),
    (pa.large_string(), "5", "5"),
    (pa.binary(), "tea", b"tea"),
    (pa.date32(), "2026-11-21", date(2026, 11, 21)),
    (pa.timestamp("us"), "2026-11-21T10:00:00", TEN),
    (pa.timestamp("ms", tz="UTC"), "2026-11-21T12:00:00+02:00", TEN.replace(tzinfo=UTC)),
]


@pytest.mark.parametrize(("type_", "text", "value"), READ, ids=str)
def test_a_value_is_read_as_its_columns_type(type_: pa.DataType, text: str, value: Any) -> None:
    field = pa.field("it", type_)
    assert condition_text(f"it >= {text}").read_for(field) == ("it", ">=", value)
    assert condition_text(f"it in {text},{text}").read_for(field) == ("it", "in", [value, value])


@pytest.mark.parametrize(
    ("field", "text", "why"),
    [
        (pa.field("id", pa.int8()), "300", "id is int8, and '300' is none$"),
        (pa.field("id", pa.int64()), "5.5", "id is int64, and '5.5' is none$"),
        (pa.field("open", pa.bool_()), "perhaps", "open is bool, and 'perhaps' is none$"),
        (METADATA.field(TIMESTAMP), "2026-11-21T10:00:00", "is none: give a time as 2026-11-21T10:00:00Z$"),
        (METADATA.field(TIMESTAMP), "1500", "is none: give a time as 2026-11-21T10:00:00Z$"),
        (pa.field("at", pa.timestamp("s")), "2026-11-21T10:00:00Z", "is none: give a time as 2026-11-21T10:00:00$"),
        (pa.field("tags", pa.list_(pa.string())), "a", "which no condition can compare: leave it out$"),
    ],
)
def test_another_value_is_refused_with_the_type(field: pa.Field, text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        condition_text(f"{field.name} = {text}").read_for(field)
