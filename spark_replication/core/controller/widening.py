"""Which schema a topic may have, and its versions: each has nullable columns after those of the one before, and nothing
else changes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from spark_replication.errors import InvalidSchema
from spark_replication.model import TopicConfig

SCHEMA_CHARACTERS_MAX = 512 << 10  # in base64, with its metadata: it must fit its znode
COLUMNS_MAX = 4_096  # each read and write of a batch takes time for each of them


class SchemaChange(msgspec.Struct, frozen=True, kw_only=True):
    """How one schema follows another. difference: the first that is no nullable column at the end; "": all are."""

    columns_before: int
    columns_after: int
    difference: str = ""


# Of a topic's schema and the one that it is to have. To core they are text: what is in them is Arrow's to say.
CompareSchemas = Callable[[str, str], SchemaChange]


def incomparable(_before: str, _after: str) -> SchemaChange:
    """Where nobody can read a schema, none is changed."""
    raise InvalidSchema("schemas cannot be read here: ask the controller")


def check_schema(schema: str, compare: CompareSchemas) -> None:
    """Of a topic that is to be made. One without a schema may be."""
    if schema:
        _compared(schema, schema, compare)


def _compared(before: str, after: str, compare: CompareSchemas) -> SchemaChange:
    """Its size is looked at before anybody reads it."""
    if len(after) > SCHEMA_CHARACTERS_MAX:
        raise InvalidSchema(
            f"the schema takes {len(after)} characters, and at most {SCHEMA_CHARACTERS_MAX} fit: use fewer columns, or "
            "less metadata"
        )
    change = compare(before, after)
    if change.columns_after > COLUMNS_MAX:
        raise InvalidSchema(f"the schema has {change.columns_after} columns, and may have {COLUMNS_MAX}: use fewer")
    return change


def widened(topic: str, config: TopicConfig, schema: str, compare: CompareSchemas) -> TopicConfig:
    """Its config with the next version; as it is, if that is the present one."""
    if schema == config.schema:
        return config
    if not config.schema:
        raise InvalidSchema(f"topic {topic} has no schema that could be widened: make another with one")
    change = _compared(config.schema, schema, compare)
    if change.difference:
        raise InvalidSchema(f"{change.difference}: {topic} may only gain nullable columns after its last")
    if change.columns_after == change.columns_before:
        return config
    return replace(config, schema=schema, earlier_columns=(*config.earlier_columns, change.columns_before))
