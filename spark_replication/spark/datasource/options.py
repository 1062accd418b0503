"""The options of `format("replicated_log")`, checked before a broker is asked for anything. Pure.

Spark gives the names of options in lower case; people may write them as they like.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from spark_replication.client.bootstrap import DELTA, FORMS
from spark_replication.config import BOOTSTRAP_VARIABLE, parse_assignment, settings_from
from spark_replication.errors import InvalidRequest
from spark_replication.mirror.paths import mirror_path
from spark_replication.model import Scalar
from spark_replication.spark.datasource.positions import Position, parse_positions, parse_time

#: How the settings begin by which a query is let in.
SECURITY = ("security.", "zookeeper.auth.", "zookeeper.tls.")
DEADLINE_MS = 30_000
DEADLINE_MS_MAX = 3_600_000
EPOCH_MAX = (1 << 31) - 1

# Options that are Spark's own, or belong to a query rather than to its source or sink.
_OF_SPARK = frozenset(("path", "checkpointlocation", "queryname", "outputmode"))

Value = TypeVar("Value")


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a source and of a sink."""

    topic: str
    bootstrap: str
    #: Settings by name. Secret ones name files.
    security: dict[str, Scalar]
    deadline_ms: int = DEADLINE_MS

    #: Source: where a read begins.
    starting: Position = "earliest"
    #: Source: where a read ends; for batches alone.
    ending: Position = "latest"
    #: Source: the columns that are read; None for all.
    columns: tuple[str, ...] | None = None
    include_metadata: bool = False
    fail_on_data_loss: bool = True
    #: Source: whether to read from replicas on a task's own host, and there from their files if it may read them.
    local_reads: bool = True
    min_partitions: int | None = None
    max_records_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None

    #: Sink: the columns whose text is the key. If empty, the task chooses the partition.
    partition_by: tuple[str, ...] = ()
    write_id: str | None = None
    #: Sink: the number of the write among those with its write_id. A later one fences the earlier ones.
    write_batch: int | None = None
    #: Sink: what a batch's task sends at once; None for the default.
    append_bytes: int | None = None


def parse(given: Mapping[str, str], environment: Mapping[str, str], *, is_stream: bool) -> LogOptions:
    """The options of a query. Raises InvalidRequest, which names the option and what it may be."""
    options = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(options)
    taken = _Taken(options)
    topic = taken("topic", str) or taken("path", str)
    if not topic:
        raise InvalidRequest('no topic is named: add .option("topic", "orders")')
    if is_stream and ("endingoffsets" in options or "endingtimestamp" in options):
        raise InvalidRequest("a stream has no end: leave out endingOffsets and endingTimestamp, or read a batch")
    if "writebatch" in options and "writeid" not in options:
        raise InvalidRequest("writeBatch counts the writes of a writeId: name that, too")
    return LogOptions(
        topic=topic,
        bootstrap=_bootstrap(taken, environment),
        security=_security(options),
        deadline_ms=taken("deadlineMs", _count_to(DEADLINE_MS_MAX)) or DEADLINE_MS,
        starting=taken.position("starting", default="latest" if is_stream else "earliest"),
        ending=taken.position("ending", default="latest"),
        columns=taken("columns", _names),
        include_metadata=taken("includeMetadata", _flag) or False,
        fail_on_data_loss=taken("failOnDataLoss", _flag) is not False,
        local_reads=taken("localReads", _flag) is not False,
        min_partitions=taken("minPartitions", _count),
        max_records_per_trigger=taken("maxRecordsPerTrigger", _count),
        max_bytes_per_trigger=taken("maxBytesPerTrigger", _count),
        partition_by=taken("partitionBy", _names) or (),
        write_id=taken("writeId", str),
        write_batch=taken("writeBatch", _epoch),
        append_bytes=taken("appendBytes", _count_to(1 << 30)),
    )


NAMES = (
    "topic",
    "bootstrap",
    "mirror",
    "deadlineMs",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "columns",
    "includeMetadata",
    "failOnDataLoss",
    "localReads",
    "minPartitions",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "partitionBy",
    "writeId",
    "writeBatch",
    "appendBytes",
)
_KNOWN = {name.lower(): name for name in NAMES}
_PLACES = frozenset(("bootstrap", "mirror"))


def _refuse_unknown(options: Mapping[str, str]) -> None:
    for name in options:
        if name not in _KNOWN and name not in _OF_SPARK and not name.startswith(SECURITY):
            near = difflib.get_close_matches(name, _KNOWN, n=1)
            meant = f"did you mean {_KNOWN[near[0]]}?" if near else f"there are {', '.join((*NAMES, *SECURITY))}…"
            raise InvalidRequest(f"there is no option {name}: {meant}")


class _Taken:
    """Reads options by name, each with the function that makes a value of its text."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def __call__(self, name: str, read: Callable[[str], Value]) -> Value | None:
        text = self._options.get(name.lower())
        if text is None:
            return None
        try:
            return read(text)
        except (ValueError, InvalidRequest) as error:
            raise InvalidRequest(f"{name}={text!r}: {getattr(error, 'message', error)}") from error

    def position(self, end: str, *, default: Position) -> Position:
        """The position by startingOffsets or startingTimestamp, or by the two options for `ending`."""
        offsets, time = f"{end}Offsets", f"{end}Timestamp"
        named = [name for name in (offsets, time) if name.lower() in self._options]
        if len(named) > 1:
            raise InvalidRequest(f"{offsets} and {time} are two places to be {end} at: name one")
        found = self(offsets, parse_positions) if named == [offsets] else self(time, parse_time)
        return default if found is None else found


def _bootstrap(taken: _Taken, environment: Mapping[str, str]) -> str:
    bootstrap, mirror = taken("bootstrap", str), taken("mirror", str)
    if bootstrap and mirror:
        raise InvalidRequest("bootstrap and mirror both say where the cluster is: name one of them")
    found = bootstrap or (mirror and f"{DELTA}{mirror_path(mirror)}") or environment.get(BOOTSTRAP_VARIABLE)
    if not found:
        raise InvalidRequest(
            f"where is the cluster? Give the option bootstrap ({FORMS}), or mirror (the path of its tables); or call "
            f"sr.register(spark, bootstrap=…); or set ${BOOTSTRAP_VARIABLE}"
        )
    return found


def _security(options: Mapping[str, str]) -> dict[str, Scalar]:
    """The security settings among the options. Raises InvalidConfig, which names a setting that does not exist."""
    told = [f"{name}={value}" for name, value in options.items() if name.startswith(SECURITY)]
    found: dict[str, Scalar] = {}
    for each in told:
        found |= parse_assignment(each)
    settings_from(found)
    return found


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or len(set(names)) < len(names):
        raise ValueError("names of columns, separated by commas, each once")
    return names


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it is true or false")
    return text.lower() == "true"


def _count(text: str) -> int:
    return _count_to(1 << 62)(text)


def _epoch(text: str) -> int:
    if not text.strip().isdecimal() or int(text) > EPOCH_MAX:
        raise ValueError(f"it is a number from 0 to {EPOCH_MAX}, such as foreachBatch's")
    return int(text)


def _count_to(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.strip().isdecimal() or not 1 <= int(text) <= most:
            raise ValueError(f"it is a number from 1 to {most}")
        return int(text)

    return read


def over(defaults: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The options given, and the defaults of the others. A query that names its cluster, in whichever way, gets no
    default for that."""
    names = {name.lower() for name in given}
    left_out = {*names, *(_PLACES if names & _PLACES else ())}
    return {**{name: value for name, value in defaults.items() if name.lower() not in left_out}, **given}


def as_options(given: Mapping[str, Scalar | None]) -> dict[str, str]:
    """The options as text, as Spark has them; one that is None is not given."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
        if value is not None
    }
