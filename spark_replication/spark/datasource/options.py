"""The options of `format("replicated_log")`, checked before a broker is asked for anything. Pure.

Spark gives the names of options in lower case; people may write them as they like.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec.structs import replace

from spark_replication.client.finding.bootstrap import DELTA, FORMS
from spark_replication.config import BOOTSTRAP_VARIABLE, parse_assignment, settings_from
from spark_replication.errors import InvalidRequest
from spark_replication.messages.groups import GROUP_NAME, OF_SPARK
from spark_replication.mirror.delta.paths import mirror_path
from spark_replication.model import Scalar
from spark_replication.spark.datasource.positions import Position, parse_positions, parse_time

#: How the settings begin by which a query is let in.
SECURITY = ("security.", "zookeeper.auth.", "zookeeper.tls.")
DEADLINE_MS = 30_000
DEADLINE_MS_MAX = 3_600_000
TRIGGER_DELAY_MS = 15 * 60_000
EPOCH_MAX = PARTITION_MAX = (1 << 31) - 1

# Options that are Spark's own, or belong to a query rather than to its source or sink.
_OF_SPARK = frozenset(("path", "checkpointlocation", "outputmode"))

Value = TypeVar("Value")


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a source and of a sink."""

    #: Empty where several may be read, until one of them is looked at (of_topic).
    topic: str
    bootstrap: str
    #: Settings by name. Secret ones name files.
    security: dict[str, Scalar]
    deadline_ms: int = DEADLINE_MS

    #: Source: the topics that are read together. Empty if it is only `topic`, or those of `pattern`.
    topics: tuple[str, ...] = ()
    #: Source: a regular expression. The topics whose whole name it matches are read, whenever they appear.
    pattern: str | None = None
    #: Source: the partitions of each topic that are read; None for all.
    assigned: dict[str, tuple[int, ...]] | None = None
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
    #: Source: a micro-batch waits until there are so many records, but no longer than max_trigger_delay_ms.
    min_records_per_trigger: int | None = None
    max_trigger_delay_ms: int = TRIGGER_DELAY_MS
    #: Source: whether a stream reports its positions, as a group of this name. None: of the id in its checkpoint.
    reports_group: bool = True
    query_name: str | None = None

    #: Sink: the columns whose text is the key. If empty, the task chooses the partition.
    partition_by: tuple[str, ...] = ()
    write_id: str | None = None
    #: Sink: the number of the write among those with its write_id. A later one fences the earlier ones.
    write_batch: int | None = None
    #: Sink: what a batch's task sends at once; None for the default.
    append_bytes: int | None = None

    @property
    def reads_several(self) -> bool:
        """Whether rows of several topics may come together, so that each needs the name of its own."""
        return self.pattern is not None or len(self.topics) > 1

    def has_partition(self, number: int) -> bool:
        return self.assigned is None or number in self.assigned.get(self.topic, ())


def of_topic(options: LogOptions, topic: str) -> LogOptions:
    """The options by which one of several topics is read."""
    return replace(options, topic=topic)


def parse(given: Mapping[str, str], environment: Mapping[str, str], *, is_stream: bool) -> LogOptions:
    """The options of a query. Raises InvalidRequest, which names the option and what it may be."""
    options = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(options)
    taken = _Taken(options)
    if is_stream and ("endingoffsets" in options or "endingtimestamp" in options):
        raise InvalidRequest("a stream has no end: leave out endingOffsets and endingTimestamp, or read a batch")
    if "writebatch" in options and "writeid" not in options:
        raise InvalidRequest("writeBatch counts the writes of a writeId: name that, too")
    _refuse_limits(taken)
    return LogOptions(
        **_topics(taken),
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
        min_records_per_trigger=taken("minRecordsPerTrigger", _count),
        max_trigger_delay_ms=taken("maxTriggerDelay", _duration_ms) or TRIGGER_DELAY_MS,
        reports_group=taken("reportGroup", _flag) is not False,
        query_name=taken("queryName", _query_name) if is_stream else None,
        partition_by=taken("partitionBy", _names) or (),
        write_id=taken("writeId", str),
        write_batch=taken("writeBatch", _epoch),
        append_bytes=taken("appendBytes", _count_to(1 << 30)),
    )


NAMES = (
    "topic",
    "subscribe",
    "subscribePattern",
    "assign",
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
    "minRecordsPerTrigger",
    "maxTriggerDelay",
    "reportGroup",
    "queryName",
    "partitionBy",
    "writeId",
    "writeBatch",
    "appendBytes",
)
#: The options that Kafka's connector has under other names.
KAFKA_NAMES = {"maxRecordsPerTrigger": "maxOffsetsPerTrigger", "minRecordsPerTrigger": "minOffsetsPerTrigger"}
_KNOWN = {name.lower(): name for name in (*NAMES, *KAFKA_NAMES.values())}
_CHOOSING = ("topic", "subscribe", "subscribePattern", "assign")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
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
        named = [each for each in (name, KAFKA_NAMES.get(name, "")) if each.lower() in self._options]
        if not named:
            return None
        if len(named) > 1:
            raise InvalidRequest(f"{named[1]} is Kafka's name of {name}: name one of them")
        text = self._options[named[0].lower()]
        try:
            return read(text)
        except (ValueError, InvalidRequest) as error:
            raise InvalidRequest(f"{named[0]}={text!r}: {getattr(error, 'message', error)}") from error

    def position(self, end: str, *, default: Position) -> Position:
        """The position by startingOffsets or startingTimestamp, or by the two options for `ending`."""
        offsets, time = f"{end}Offsets", f"{end}Timestamp"
        named = [name for name in (offsets, time) if name.lower() in self._options]
        if len(named) > 1:
            raise InvalidRequest(f"{offsets} and {time} are two places to be {end} at: name one")
        found = self(offsets, parse_positions) if named == [offsets] else self(time, parse_time)
        return default if found is None else found


def _topics(taken: _Taken) -> dict[str, Any]:
    """Which topics and partitions are read, as LogOptions has it."""
    named = [name for name in _CHOOSING if taken(name, str) is not None]
    if len(named) > 1:
        raise InvalidRequest(f"{' and '.join(named)} each say what is read: name one of them")
    if pattern := taken("subscribePattern", _pattern):
        return {"topic": "", "pattern": pattern}
    if assigned := taken("assign", _assigned):
        return {**_read_together(tuple(assigned)), "assigned": assigned}
    if topics := taken("subscribe", _names):
        return _read_together(topics)
    topic = taken("topic", str) or taken("path", str)
    if not topic:
        raise InvalidRequest('no topic is named: add .option("topic", "orders")')
    return {"topic": topic}


def _read_together(topics: tuple[str, ...]) -> dict[str, Any]:
    return {"topic": topics[0]} if len(topics) == 1 else {"topic": "", "topics": topics}


def _refuse_limits(taken: _Taken) -> None:
    least, most = taken("minRecordsPerTrigger", _count), taken("maxRecordsPerTrigger", _count)
    if least is not None and most is not None and least > most:
        raise InvalidRequest(f"a trigger is to take at least {least} and at most {most} records: no number is both")
    if least is None and taken("maxTriggerDelay", str) is not None:
        raise InvalidRequest("maxTriggerDelay is how long minOffsetsPerTrigger may wait: name that, too")


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
        raise ValueError("it is names, separated by commas, each once")
    return names


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"it is a regular expression as Python has them, and {error}") from error
    if not text:
        raise ValueError("it is a regular expression, and would match no topic")
    return text


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    refusal = ValueError('it is JSON of partitions by topic, as {"orders": [0, 1], "payments": [2]}, each once')
    try:
        told = msgspec.json.decode(text, type=dict[str, list[Annotated[int, msgspec.Meta(ge=0, le=PARTITION_MAX)]]])
    except msgspec.DecodeError as error:
        raise refusal from error
    if not told or not all(numbers and len(set(numbers)) == len(numbers) for numbers in told.values()):
        raise refusal
    return {topic: tuple(sorted(told[topic])) for topic in sorted(told)}


def _query_name(text: str) -> str:
    if re.fullmatch(GROUP_NAME, f"{OF_SPARK}{text}") is None or not text:
        raise ValueError("it names a group, by letters, digits, `.`, `_`, `:` and `-`, 243 at most")
    return text


def _duration_ms(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,9}) *([a-z]*)", text.strip().lower())
    if found is None or found[2] not in ("", *_UNITS_MS) or not int(found[1]):
        raise ValueError(f"it is a time as 15m or 500ms, with a unit of {', '.join(_UNITS_MS)}")
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]


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
