"""Versions of a topic's schema: each has nullable columns after those of the one before, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from spark_replication.errors import InvalidSchema
from spark_replication.model import TopicConfig

SCHEMA_CHARACTERS_MAX = 512 << 10  # in base64: it must fit its znode


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


def widened(topic: str, config: TopicConfig, schema: str, compare: CompareSchemas) -> TopicConfig:
    """Its config with the next version; as it is, if that is the present one."""
    if schema == config.schema:
        return config
    if not config.schema:
        raise InvalidSchema(f"topic {topic} has no schema that could be widened: make another with one")
    if len(schema) > SCHEMA_CHARACTERS_MAX:
        raise InvalidSchema(
            f"the schema takes {len(schema)} characters, and at most {SCHEMA_CHARACTERS_MAX} fit: use fewer columns"
        )
    change = compare(config.schema, schema)
    if change.difference:
        raise InvalidSchema(f"{change.difference}: {topic} may only gain nullable columns after its last")
    if change.columns_after == change.columns_before:
        return config
    return replace(config, schema=schema, earlier_columns=(*config.earlier_columns, change.columns_before))
