"""Every setting, with its name, range, default and meaning, and how settings are read and checked.

An unknown name is an error.

Names are Kafka's where Kafka has one. Durations end in `.ms`, sizes in `.bytes`. A setting of `TopicSettings` may be
overridden per topic. A setting of `Settings` alone holds for a process or the cluster.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, field

from spark_replication.decoding import from_builtins
from spark_replication.errors import InvalidConfig
from spark_replication.model import PORT_MAX, Scalar

Count = Annotated[int, Meta(ge=1)]
Milliseconds = Annotated[int, Meta(ge=1, le=7 * 24 * 3_600_000)]
Bytes = Annotated[int, Meta(ge=1, le=1 << 40)]

RecoveryStrategy = Literal["manual", "balanced", "proactive"]
FlushMode = Literal["none", "interval", "always"]
Compression = Literal["none", "lz4", "zstd"]
SecurityMode = Literal["none", "token", "tls"]

FILE_ENDING = ".file"  # of a setting that names a file


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings that a topic may override."""

    min_insync_replicas: Annotated[Count, Meta(description="acks=all needs an ISR of this size")] = field(
        name="min.insync.replicas", default=2
    )
    unclean_recovery_strategy: Annotated[
        RecoveryStrategy, Meta(description="what happens when ISR and ELR hold no live replica")
    ] = field(name="unclean.recovery.strategy", default="balanced")
    unclean_leader_election_enable: Annotated[
        bool, Meta(description="without unclean recovery: any live replica may lead when ISR and ELR hold none")
    ] = field(name="unclean.leader.election.enable", default=False)
    compression: Annotated[
        Compression, Meta(description="of the columns of batches as they are stored from now on")
    ] = field(name="compression", default="none")
    segment_bytes: Annotated[Bytes, Meta(description="a segment is closed once it is this large")] = field(
        name="segment.bytes", default=256 << 20
    )
    segment_ms: Annotated[int, Meta(ge=1, description="a segment is closed once its first batch is this old")] = field(
        name="segment.ms", default=7 * 24 * 3_600_000
    )
    flush: Annotated[
        FlushMode,
        Meta(
            description="when a log goes to the disk: left to the kernel, every flush.interval.ms, or before each "
            "acknowledgement"
        ),
    ] = field(name="flush", default="none")
    flush_interval_ms: Annotated[Milliseconds, Meta(description="with flush=interval: at least this often")] = field(
        name="flush.interval.ms", default=1_000
    )
    retention_ms: Annotated[
        int, Meta(ge=-1, description="closed segments whose batches are all older than this are deleted; -1 = never")
    ] = field(name="retention.ms", default=7 * 24 * 3_600_000)
    retention_bytes: Annotated[
        int,
        Meta(ge=-1, description="the oldest closed segments of a partition beyond this size are deleted; -1 = never"),
    ] = field(name="retention.bytes", default=-1)
    table: Annotated[
        bool,
        Meta(
            description="the topic is a Delta table, too, below table.path: its log is the newest part, and what the "
            "table has outlives brokers and their disks"
        ),
    ] = field(name="table", default=False)
    table_flush_ms: Annotated[
        int,
        Meta(ge=100, le=7 * 24 * 3_600_000, description="rows are in the topic's table once the oldest is this old"),
    ] = field(name="table.flush.ms", default=300_000)
    table_file_bytes: Annotated[
        int,
        Meta(
            ge=1 << 20,
            le=1 << 34,
            description="a file of a topic's table is closed once it is this large; smaller ones are joined later",
        ),
    ] = field(name="table.file.bytes", default=128 << 20)
    table_partition_by: Annotated[
        str,
        Meta(
            description="columns, parted by commas, by whose values a topic's table is partitioned as it is made; _day "
            "is the day of _timestamp; empty = it is not"
        ),
    ] = field(name="table.partition.by", default="")
    table_blocks_retention: Annotated[
        bool,
        Meta(
            description="of a topic that is a table, only what the table has is deleted; false: a table that cannot be "
            "written costs rows, and no disk fills up"
        ),
    ] = field(name="table.blocks.retention", default=True)
    table_retention_ms: Annotated[
        int,
        Meta(
            ge=-1,
            description="files of the topic's table whose rows are all older than this are removed from it; -1 = never",
        ),
    ] = field(name="table.retention.ms", default=-1)
    table_retention_bytes: Annotated[
        int,
        Meta(
            ge=-1, description="the oldest files of the topic's table beyond this size are removed from it; -1 = never"
        ),
    ] = field(name="table.retention.bytes", default=-1)
    local_retention_ms: Annotated[
        int,
        Meta(ge=-2, description="of a topic that is a table, as retention.ms for its log; -2 = as retention.ms"),
    ] = field(name="local.retention.ms", default=-2)
    local_retention_bytes: Annotated[
        int,
        Meta(ge=-2, description="of a topic that is a table, as retention.bytes for its log; -2 = as retention.bytes"),
    ] = field(name="local.retention.bytes", default=-2)


class Settings(TopicSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings. Those of TopicSettings are the defaults of topics."""

    default_replication_factor: Annotated[Count, Meta(description="of a topic created without one")] = field(
        name="default.replication.factor", default=3
    )
    unclean_recovery_enabled: Annotated[
        bool,
        Meta(
            description="unclean.recovery.strategy holds; false: unclean.leader.election.enable. Flipped, it converts"
        ),
    ] = field(name="unclean.recovery.enabled", default=True)
    unclean_recovery_timeout_ms: Annotated[
        Milliseconds, Meta(description="how long an unclean recovery waits for the log infos of replicas")
    ] = field(name="unclean.recovery.timeout.ms", default=5_000)
    leader_imbalance_check_interval_ms: Annotated[
        int, Meta(ge=0, description="leaderships go back to preferred replicas this often; 0 = never by itself")
    ] = field(name="leader.imbalance.check.interval.ms", default=0)
    replica_lag_time_ms: Annotated[
        Milliseconds, Meta(description="a follower that was not caught up for this long leaves the ISR")
    ] = field(name="replica.lag.time.ms", default=10_000)
    replica_lag_bytes: Annotated[
        int, Meta(ge=0, description="a follower that lags by more than this leaves the ISR; 0 = never for that")
    ] = field(name="replica.lag.bytes", default=0)
    disk_retry_ms: Annotated[
        Milliseconds, Meta(description="how long a replica whose disk refused waits before it tries again")
    ] = field(name="disk.retry.ms", default=10_000)
    log_scrub_bytes_per_second: Annotated[
        int,
        Meta(
            ge=0,
            description="how fast a broker reads its own logs to find what its disk has damaged, which it then copies "
            "from another replica; 0 = only what is read anyway is looked at",
        ),
    ] = field(name="log.scrub.bytes.per.second", default=1 << 20)
    reassignment_bytes_per_second: Annotated[
        int,
        Meta(
            ge=0,
            description="what a broker sends in all to replicas that reassignments add elsewhere; in-sync followers "
            "and consumers are not held up; 0 = no limit",
        ),
    ] = field(name="reassignment.bytes.per.second", default=0)
    replica_fetch_bytes_max: Annotated[Bytes, Meta(description="of one partition in one replication frame")] = field(
        name="replica.fetch.bytes.max", default=8 << 20
    )
    batch_bytes_max: Annotated[Bytes, Meta(description="a larger batch is refused, however well it compresses")] = (
        field(name="batch.bytes.max", default=16 << 20)
    )
    log_retention_check_interval_ms: Annotated[
        Milliseconds, Meta(description="a leader looks this often for what retention.ms and retention.bytes delete")
    ] = field(name="log.retention.check.interval.ms", default=300_000)
    partition_waiters_max: Annotated[
        Count, Meta(description="acks=all appends of a partition that wait for the high watermark at one time")
    ] = field(name="partition.waiters.max", default=10_000)
    partition_producers_max: Annotated[
        Count,
        Meta(description="idempotent producers that a partition remembers; who was silent longest is forgotten first"),
    ] = field(name="partition.producers.max", default=10_000)
    producer_id_expiration_ms: Annotated[
        Milliseconds,
        Meta(
            description="an idempotent producer that was silent for this long is forgotten; longer than any producer "
            "tries a batch for"
        ),
    ] = field(name="producer.id.expiration.ms", default=24 * 3_600_000)
    broker_lease_ms: Annotated[
        int, Meta(ge=0, description="a broker that no guardian renewed for this long shuts down; 0 = never")
    ] = field(name="broker.lease.ms", default=600_000)
    broker_memory_bytes_max: Annotated[
        int,
        Meta(
            ge=-1,
            le=1 << 50,
            description="a broker that takes more memory of its own than this, threads' stacks included, ends before "
            "its host suffers, and is started again; 0 = half of what the host has, or its container; -1 = no limit",
        ),
    ] = field(name="broker.memory.bytes.max", default=0)
    controller_memory_bytes_max: Annotated[
        int,
        Meta(
            ge=-1,
            le=1 << 50,
            description="as broker.memory.bytes.max, of a controller that is a process of its own. In a Spark cluster, "
            "of the process that has the driver's port and takes its calls: there 0 = 1 GiB",
        ),
    ] = field(name="controller.memory.bytes.max", default=0)
    data_dir: Annotated[
        str, Meta(description="where the embedded ZooKeeper, the logs and the mirror lie unless told otherwise")
    ] = field(name="data.dir", default=".data")
    log_dir: Annotated[
        str, Meta(description="where brokers keep their directories, on each host; empty = logs/ in data.dir")
    ] = field(name="log.dir", default="")
    log_dir_mode: Annotated[
        str,
        Meta(
            pattern=r"^([0-7]{3})?$",
            description="the permissions of a broker's directory: 750 lets its group read logs from files; empty = as "
            "they are, whoever owns it",
        ),
    ] = field(name="log.dir.mode", default="700")
    zookeeper_connect: Annotated[
        str, Meta(description="host:port,… of a ZooKeeper; empty = an embedded one is started in data.dir")
    ] = field(name="zookeeper.connect", default="")
    zookeeper_session_ms: Annotated[Milliseconds, Meta(description="how long a silent process counts as alive")] = (
        field(name="zookeeper.session.ms", default=9_000)
    )
    zookeeper_auth_file: Annotated[
        str,
        Meta(
            description="holds USER:PASSWORD, one line that not everybody may read: what is written in ZooKeeper is "
            "its holders' alone. With the embedded one the cluster makes it, unless security.mode=none"
        ),
    ] = field(name="zookeeper.auth.file", default="")
    zookeeper_unprotected: Annotated[
        bool,
        Meta(
            description="something else keeps strangers from ZooKeeper, so zookeeper.auth.file is not asked for when "
            "security.mode is not none"
        ),
    ] = field(name="zookeeper.unprotected", default=False)
    zookeeper_login_in_clear: Annotated[
        bool,
        Meta(
            description="the login of zookeeper.auth.file may cross a network without TLS, where whoever listens "
            "learns it"
        ),
    ] = field(name="zookeeper.login.in.clear", default=False)
    zookeeper_tls_ca_file: Annotated[
        str, Meta(description="PEM: who signs ZooKeeper's certificates; empty = connections to it are not encrypted")
    ] = field(name="zookeeper.tls.ca.file", default="")
    zookeeper_tls_certificate_file: Annotated[
        str, Meta(description="PEM: the certificate that this process shows to ZooKeeper, if that asks for one")
    ] = field(name="zookeeper.tls.certificate.file", default="")
    zookeeper_tls_key_file: Annotated[
        str, Meta(description="PEM: the certificate's key without a password, which not everybody may read")
    ] = field(name="zookeeper.tls.key.file", default="")
    zookeeper_chroot: Annotated[str, Meta(pattern=r"^(/[^/\s]+)+$", description="below which everything lives")] = (
        field(name="zk.chroot", default="/spark_replication")
    )
    controlled_shutdown_timeout_ms: Annotated[
        Milliseconds, Meta(description="how long a stopping broker waits for its leaderships to move")
    ] = field(name="controlled.shutdown.timeout.ms", default=10_000)
    log_delete_delay_ms: Annotated[
        int, Meta(ge=0, description="how long the files of a removed partition are kept in quarantine")
    ] = field(name="log.delete.delay.ms", default=60_000)
    log_unassigned_delay_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="how long the files of a replica are kept in quarantine that nobody asked to delete, and that "
            "ZooKeeper does not assign",
        ),
    ] = field(name="log.unassigned.delay.ms", default=3 * 24 * 3_600_000)
    open_files_max: Annotated[
        int,
        Meta(ge=0, description="log files that a broker keeps open, the others with each use; 0 = half of what it may"),
    ] = field(name="open.files.max", default=0)
    flush_threads: Annotated[
        Count, Meta(description="logs that a broker flushes at one time, with flush=interval or always")
    ] = field(name="flush.threads", default=4)
    index_cache_bytes: Annotated[
        Bytes, Meta(description="batch indexes that a broker keeps in memory; more are read when they are used")
    ] = field(name="index.cache.bytes", default=64 << 20)
    batch_cache_bytes: Annotated[
        Bytes, Meta(description="newest batches that a broker keeps in memory, for followers and readers close behind")
    ] = field(name="batch.cache.bytes", default=32 << 20)
    recovery_trust_page_cache: Annotated[
        bool, Meta(description="a killed process on the same boot of its host has lost nothing (I8)")
    ] = field(name="recovery.trust.page.cache", default=True)
    mirror_interval_ms: Annotated[
        Milliseconds, Meta(description="a write of the mirror's tables begins no sooner after the one before")
    ] = field(name="mirror.interval.ms", default=100)
    mirror_heartbeat_ms: Annotated[
        Milliseconds, Meta(description="the mirror's status is renewed as often, at least, whatever happens")
    ] = field(name="mirror.heartbeat.ms", default=10_000)
    mirror_history_bytes: Annotated[
        Bytes,
        Meta(description="of each table, what earlier versions of the last 7 days may take, half of it their log"),
    ] = field(name="mirror.history.bytes", default=20 << 20)
    mirror_events_retention_ms: Annotated[
        int, Meta(ge=60_000, description="events of the mirror are kept for so long")
    ] = field(name="mirror.events.retention.ms", default=30 * 24 * 3_600_000)
    mirror_path: Annotated[
        str,
        Meta(description="where the Delta tables lie: a folder, or an object store; empty = in the data directory"),
    ] = field(name="mirror.path", default="")
    mirror_files_mode: Annotated[
        str,
        Meta(
            pattern=r"^([0-7]{3})?$",
            description="the permissions of the folder of the Delta tables: whom it keeps out reaches none of their "
            "files, 700 everybody but its owner; empty = as it is, or as the umask has it",
        ),
    ] = field(name="mirror.files.mode", default="")
    mirror_storage_file: Annotated[
        str,
        Meta(description="TOML that not everybody may read: what opens mirror.path, as delta-rs has it"),
    ] = field(name="mirror.storage.file", default="")
    table_path: Annotated[
        str,
        Meta(
            description="where topics' own Delta tables lie, each by its topic's name: a folder, or an object store; "
            "empty = in the data directory"
        ),
    ] = field(name="table.path", default="")
    table_writer_enabled: Annotated[
        bool,
        Meta(
            description="beside each broker a process writes topics' tables; false: only who writes them otherwise does"
        ),
    ] = field(name="table.writer.enabled", default=True)
    table_storage_file: Annotated[
        str,
        Meta(description="TOML that not everybody may read: what opens table.path, as delta-rs has it"),
    ] = field(name="table.storage.file", default="")
    page_enabled: Annotated[
        bool, Meta(description="the controller starts a process that serves the page that shows how the cluster is")
    ] = field(name="page.enabled", default=True)
    page_port: Annotated[
        int, Meta(ge=0, le=PORT_MAX, description="where the page is served; 0 = where it was before, or any free port")
    ] = field(name="page.port", default=0)
    request_timeout_ms: Annotated[Milliseconds, Meta(description="of one request between processes")] = field(
        name="request.timeout.ms", default=10_000
    )
    replication_frame_bytes_max: Annotated[
        Bytes, Meta(description="a larger frame between brokers ends its connection; at least twice a fetch or a batch")
    ] = field(name="replication.frame.bytes.max", default=64 << 20)
    flight_reads_max: Annotated[
        Count,
        Meta(
            description="read streams that a broker serves at one time, those that wait for records included, and "
            "connections of readers besides"
        ),
    ] = field(name="flight.reads.max", default=1_000)
    group_connections_max: Annotated[
        Count, Meta(description="connections of members of consumer groups that a broker serves at one time")
    ] = field(name="group.connections.max", default=2_000)
    group_retention_ms: Annotated[
        int,
        Meta(
            ge=-1,
            description="so long the positions of a consumer group are kept that has no members, and commits nothing; "
            "-1 = for ever",
        ),
    ] = field(name="group.retention.ms", default=30 * 24 * 3_600_000)
    flight_read_bytes_max: Annotated[
        Bytes,
        Meta(
            description="what the open read streams of a broker hold in all, and as much besides for answers to "
            "readers; the more do, the less each reads"
        ),
    ] = field(name="flight.read.bytes.max", default=128 << 20)
    flight_writes_max: Annotated[
        Count, Meta(description="write streams that a broker serves at one time, and producers besides")
    ] = field(name="flight.writes.max", default=1_000)
    flight_write_bytes_max: Annotated[
        Bytes,
        Meta(
            description="batches of write streams that a broker checks and appends at one time, in all; a quarter as "
            "much besides for batches of producers that wait for their partition"
        ),
    ] = field(name="flight.write.bytes.max", default=256 << 20)
    stream_unanswered_max: Annotated[
        Count, Meta(description="batches of one write stream or producer that wait for an answer; more are not read")
    ] = field(name="stream.unanswered.max", default=5_000)
    security_mode: Annotated[
        SecurityMode,
        Meta(
            description="none: loopback only; token: a shared secret, nothing is encrypted; tls: certificates, and a "
            "token as well if there is one"
        ),
    ] = field(name="security.mode", default="none")
    security_token_file: Annotated[
        str, Meta(description="holds the shared secret, one line that not everybody may read; the same on every host")
    ] = field(name="security.token.file", default="")
    security_session_token_file: Annotated[
        str,
        Meta(
            description="where security.token.file has verifiers alone: a file with the token of whom the cluster's "
            "own session is"
        ),
    ] = field(name="security.session.token.file", default="")
    security_broker_token_file: Annotated[
        str,
        Meta(
            description="a second secret, of brokers, controllers and guardians: whoever lacks it is a client, gives "
            "them no orders, and takes no broker's place. On one host the cluster makes it"
        ),
    ] = field(name="security.broker.token.file", default="")
    security_token_in_clear: Annotated[
        bool,
        Meta(
            description="nobody listens on the network, so a token may cross it without tls; else only loopback is "
            "served with a token alone"
        ),
    ] = field(name="security.token.in.clear", default=False)
    security_broker_principals: Annotated[
        str,
        Meta(
            description="with security.tls.mutual, in place of security.broker.token.file: the names in the "
            "certificates of brokers, controllers and guardians, by commas"
        ),
    ] = field(name="security.broker.principals", default="")
    security_super_users: Annotated[
        str,
        Meta(
            description="principals that may do what clients may, by commas: with them, every other principal may do "
            "only what security.acls grants; empty = whoever is let in may do all of it"
        ),
    ] = field(name="security.super.users", default="")
    security_acls: Annotated[
        str,
        Meta(
            description="who may do what: `alice write topic orders; bob read prefix orders-; carol alter cluster`. "
            "Holds until `spark-replication acls` changes them"
        ),
    ] = field(name="security.acls", default="")
    security_quotas: Annotated[
        str,
        Meta(
            description="how much principals may take of each process: `alice producer_byte_rate 1048576; * streams "
            "100`. Holds until `spark-replication quotas` changes them"
        ),
    ] = field(name="security.quotas", default="* connections 900; * streams 900")
    security_tls_certificate_file: Annotated[
        str, Meta(description="PEM: this process's certificate, for the host that others dial, and what signed it")
    ] = field(name="security.tls.certificate.file", default="")
    security_tls_key_file: Annotated[
        str, Meta(description="PEM: the certificate's key without a password, which not everybody may read")
    ] = field(name="security.tls.key.file", default="")
    security_tls_ca_file: Annotated[str, Meta(description="PEM: who signs the certificates of this cluster")] = field(
        name="security.tls.ca.file", default=""
    )
    security_tls_mutual: Annotated[
        bool,
        Meta(description="clients show a certificate, too; without a token this is what lets brokers leave loopback"),
    ] = field(name="security.tls.mutual", default=False)


class Described(msgspec.Struct, frozen=True):
    """A setting, described for people."""

    name: str
    values: str
    default: Scalar
    #: Whether a topic may override it.
    of_topic: bool
    meaning: str


def described() -> list[Described]:
    """All settings, sorted by name."""
    found = []
    for entry in msgspec.structs.fields(Settings):
        metas = getattr(entry.type, "__metadata__", ())
        meaning = next((meta.description for meta in reversed(metas) if meta.description), "")
        of_topic = entry.encode_name in TOPIC_SETTINGS
        found.append(Described(entry.encode_name, _values(entry.type), entry.default, of_topic, meaning))
    return sorted(found, key=lambda each: each.name)


def _values(annotated: Any) -> str:
    """The values that a setting accepts: a range, one of a few words, or a text."""
    metas = getattr(annotated, "__metadata__", ())
    kind = annotated.__origin__ if metas else annotated
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if kind is bool:
        return "true or false"
    if kind is str:
        return "text"
    low = max((meta.ge for meta in metas if meta.ge is not None), default=None)
    high = min((meta.le for meta in metas if meta.le is not None), default=None)
    return f"{low} to {high}" if high is not None else f"{low} or more"


ENVIRONMENT = "SPARK_REPLICATION_"
BOOTSTRAP_VARIABLE = "SPARK_REPLICATION_BOOTSTRAP"  # stands for --bootstrap of the command line; no setting


@cache  # reading a struct's fields evaluates their annotations, which takes a millisecond for every topic's settings
def _names(kind: type[TopicSettings]) -> Mapping[str, str]:
    return {entry.encode_name: entry.name for entry in msgspec.structs.fields(kind)}


TOPIC_SETTINGS = frozenset(_names(TopicSettings))

# The settings that hold while those of the cluster cannot be read: none of them can lose a record, or let anybody in.
LOSSLESS: Mapping[str, Scalar] = {
    "retention.ms": -1,
    "retention.bytes": -1,
    "unclean.recovery.strategy": "manual",
    "unclean.leader.election.enable": False,
    "security.acls": "",
}

# The cluster's settings that a running broker applies. All others stay as they were when its process started. ACLs and
# quotas it applies besides.
LIVE_ON_BROKERS = TOPIC_SETTINGS | {
    "log.retention.check.interval.ms",
    "partition.producers.max",
    "partition.waiters.max",
    "producer.id.expiration.ms",
    "reassignment.bytes.per.second",
    "replica.lag.bytes",
    "replica.lag.time.ms",
}

# The cluster's settings that a controller applies. All others stay as they were when its process started.
LIVE_ON_CONTROLLER = TOPIC_SETTINGS | {
    "default.replication.factor",
    "disk.retry.ms",
    "leader.imbalance.check.interval.ms",
    "security.acls",
    "security.quotas",
    "unclean.recovery.enabled",
    "unclean.recovery.timeout.ms",
}

# What the cluster can have as its own: somebody applies it.
OF_CLUSTER = LIVE_ON_BROKERS | LIVE_ON_CONTROLLER


def settings_from(*layers: Mapping[str, Any]) -> Settings:
    """The defaults, overridden by each layer in turn (file, environment, --set, ZooKeeper)."""
    flat: dict[str, Scalar] = {}
    for layer in layers:
        flat.update(flattened(layer))
    for name in flat:
        _check_known(name, _names(Settings))
    return _converted(flat, Settings)


def with_topic(settings: Settings, overrides: Mapping[str, Scalar]) -> Settings:
    """The settings of a topic with these overrides. Without overrides, the same object is returned: partitions share
    it."""
    if not overrides:
        return settings
    for name in overrides:
        _check_known(name, _names(TopicSettings), of_topic=True)
    return _converted({**msgspec.to_builtins(settings), **overrides}, Settings)


def flattened(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Turn nested tables back into dotted names: TOML reads `replica.lag.time.ms = 5` as tables within tables."""
    flat: dict[str, Scalar] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat.update(flattened(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def from_environment(environment: Mapping[str, str]) -> dict[str, Scalar]:
    """Read settings from the environment: `SPARK_REPLICATION_MIN_INSYNC_REPLICAS=1` sets min.insync.replicas. An
    unknown name is an error."""
    known = {variable_of(name): name for name in _names(Settings)}
    given: dict[str, Scalar] = {}
    for variable, value in environment.items():
        if variable.startswith(ENVIRONMENT) and variable != BOOTSTRAP_VARIABLE:
            if variable not in known:
                raise InvalidConfig(f"unknown environment variable {variable}: names are like {next(iter(known))}")
            given |= parse_assignment(f"{known[variable]}={value}")
    return given


def variable_of(name: str) -> str:
    """The variable of the environment that sets this setting."""
    return ENVIRONMENT + name.replace(".", "_").upper()


def parse_assignment(text: str) -> dict[str, Scalar]:
    """Parse the `name=value` of `--set`. Numbers and booleans are recognised unless the setting is a text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidConfig(f"{text!r} is not NAME=VALUE")
    if any(each.name == name and each.values == "text" for each in described()):
        return {name: value}
    if value in ("true", "false"):
        return {name: value == "true"}
    return {name: int(value) if value.removeprefix("-").isdecimal() else value}


def parse_change(text: str) -> dict[str, Scalar | None]:
    """Parse a change of the settings of a topic, or of the cluster: `name=value`, or `name=` to take its own away."""
    name, equals, value = text.partition("=")
    return {name: None} if equals and not value else {**parse_assignment(text)}


def check_of_cluster(changes: Mapping[str, Scalar | None]) -> None:
    """Raise InvalidConfig for a setting that no process would take from the cluster. It may be taken away."""
    for name, value in changes.items():
        _check_known(name, _names(Settings))
        if value is not None and name not in OF_CLUSTER:
            raise InvalidConfig(
                f"{name} is not the cluster's to set: each process reads it as it starts. Set it in the file, the "
                "environment or by --set of what starts the process, and start that again"
            )


def _check_known(name: str, known: Mapping[str, str], *, of_topic: bool = False) -> None:
    if name in known:
        return
    if of_topic and name in _names(Settings):
        raise InvalidConfig(f"{name} cannot be set for a topic, only for the cluster")
    close = difflib.get_close_matches(name, known, n=1)
    hint = f": did you mean {close[0]}?" if close else ": `spark-replication settings` lists them"
    raise InvalidConfig(f"unknown setting {name}{hint}")


def _converted(flat: Mapping[str, Scalar], kind: type[Settings]) -> Settings:
    try:
        return from_builtins(flat, kind)
    except msgspec.ValidationError as error:
        raise _refused(flat, str(error)) from error


def _refused(flat: Mapping[str, Scalar], told: str) -> InvalidConfig:
    """told: what the decoder says, and where: "Expected `int` >= 1 - at `$.page.port`"."""
    why, _, where = told.rpartition(" - at ")
    found = next((each for each in described() if where == f"`$.{each.name}`"), None)
    if found is None:
        return InvalidConfig(told)
    takes = why if found.values == "text" else f"it takes {found.values}"
    return InvalidConfig(f"{found.name}={flat[found.name]!r}: {takes}. `spark-replication settings` says what each is")
