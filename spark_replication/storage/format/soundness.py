"""What Arrow reads, and its own validation leaves out: types that pyarrow cannot show, and nulls that end a process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from spark_replication.errors import InvalidRequest


def require_shown(schema: pa.Schema) -> None:
    """Raises InvalidRequest if a column has a type that Arrow reads and cannot show: a look at it would fail."""
    shown = set()
    for place, field in enumerate(schema):
        try:
            if field.type not in shown:
                _show(field.type)
                shown.add(field.type)
        except Exception as error:  # pyarrow's: KeyError of a type, UnicodeDecodeError of a name, its own of the rest
            raise InvalidRequest(
                f"column {place} has a type that pyarrow cannot show ({error!r}): use another, as int32 for months"
            ) from error


def _show(kind: pa.DataType) -> None:
    """Fail as a look at a column of this type would; or where that would end the process, as nulls of a union without
    fields do, at any depth. So what a type is made of comes first."""
    if isinstance(kind, pa.BaseExtensionType):
        _show(kind.storage_type)
    elif pa.types.is_dictionary(kind):
        _show(kind.value_type)
    else:
        for place in range(kind.num_fields):
            _show(kind.field(place).type)
    if pa.types.is_union(kind) and not kind.num_fields:
        raise TypeError("a union without fields")
    str(kind)
    pa.nulls(0, kind)


def places_of_views(schema: pa.Schema) -> tuple[int, ...]:
    """Which columns hold views (string_view, binary_view), at any depth."""
    return tuple(place for place, kind in enumerate(schema.types) if _holds_views(kind))


def require_sound_nulls(batch: pa.RecordBatch, places: Sequence[int]) -> None:
    """Raises what Arrow's validation raises if a null in one of these columns, which hold views, leads out of its
    buffers. That validation looks at no null, and a cast looks at all: it ended this process, and every reader's."""
    for place in places:
        for view in _views(batch.column(place)):
            _, *buffers = view.buffers()
            pa.Array.from_buffers(pa.binary_view(), view.offset + len(view), [None, *buffers]).validate(full=True)


def _holds_views(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_views(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _holds_views(kind.value_type)
    return _is_view(kind) or any(_holds_views(kind.field(place).type) for place in range(kind.num_fields))


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _views(column: pa.Array) -> Iterator[pa.Array]:
    """The view columns in it, at any depth."""
    kind = column.type
    if _is_view(kind):
        yield column
    elif isinstance(kind, pa.BaseExtensionType):
        yield from _views(column.storage)
    elif pa.types.is_dictionary(kind):
        yield from _views(column.dictionary)
    elif pa.types.is_struct(kind) or pa.types.is_union(kind):
        for place in range(kind.num_fields):
            yield from _views(column.field(place))
    elif kind.num_fields:
        yield from _views(column.values)
