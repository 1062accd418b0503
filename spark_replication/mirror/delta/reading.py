"""Rows of a Delta table, read by delta-rs itself.

DeltaTable.to_pyarrow_table is not used: pyarrow's threads would call into Python for every byte, and one in five
processes that end soon after such a read is aborted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

_ARROW_HAS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def rows_of(opened: DeltaTable, columns: Iterable[str] | None = None, where: str | None = None) -> pa.Table:
    """Rows of the version that is open. where: SQL, made by the functions below."""
    wanted = "*" if columns is None else ", ".join(map(named, columns))
    return _found(opened, f"SELECT {wanted} FROM rows{_only(where)}")


def last_rows_of(opened: DeltaTable, column: str, count: int, where: str | None = None) -> pa.Table:
    """The rows with the highest values of `column`, in no order."""
    return _found(opened, f"SELECT * FROM rows{_only(where)} ORDER BY {named(column)} DESC LIMIT {count}")


def _only(where: str | None) -> str:
    return "" if where is None else f" WHERE {where}"


def _found(opened: DeltaTable, query: str) -> pa.Table:
    found = pa.table(QueryBuilder().register("rows", opened).execute(query))
    fields = [field.with_type(_ARROW_HAS.get(field.type, field.type)) for field in found.schema]
    return found.cast(pa.schema(fields))


def named(column: str) -> str:
    return f'"{column}"'


def is_one_of(column: str, values: Collection[str] | Collection[int]) -> str:
    """SQL: the column has one of these values, of which there is at least one."""
    return f"{named(column)} IN ({', '.join(map(_literal, values))})"


def _literal(value: str | int) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
