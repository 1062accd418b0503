"""Every error that crosses a border of the system: one tree, with a code for each, and what the caller may do next.

Callers ask `error.retriable` and `error.stale_routes`; they never compare classes or text. The code is the error's name
on the wire, and `error_of` turns it back into an error. A library's exception is translated where it enters.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar


class ReplicationError(Exception):
    """The base of all errors. `message` says what happened and what to do next."""

    code: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    retriable: ClassVar[bool] = False
    stale_routes: ClassVar[bool] = False

    def __init__(self, message: str, *, maybe_written: bool = False) -> None:
        super().__init__(message)
        self.message = message
        #: False promises that nothing of the request was stored. True: it may be stored, ask again before giving up.
        self.maybe_written = maybe_written

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.maybe_written))


Kept = TypeVar("Kept", bound=BaseException)


def without_frames(error: Kept) -> Kept:
    """The same error, to be kept. The frames that it came through would stay with it, and all that these had in hand,
    such as the buffer that a batch came in."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def mistake(error: BaseException, what: str) -> ReplicationError:
    """What others are told of an error that nobody expected. `what` says what has ended by it."""
    return ReplicationError(
        f"{what} ended by an error that nobody expected, {error!r}: report it, with the traceback in the log",
        maybe_written=True,
    )


def _rebuild(kind: type[ReplicationError], message: str, maybe_written: bool) -> ReplicationError:  # noqa: FBT001 (pickle)
    return kind(message, maybe_written=maybe_written)


# Requests that are wrong in themselves: a retry changes nothing.


class InvalidRequest(ReplicationError):
    """The request is malformed: a missing or unknown key, a value out of range."""

    code = "INVALID_REQUEST"


class WrongUsage(InvalidRequest):
    """No such command or option is there, or it does not take what was given: the message says whose --help to read."""

    code = "WRONG_USAGE"


class ClientClosed(InvalidRequest):
    """This Producer, Reader or Admin was closed: another has to be made."""

    code = "CLIENT_CLOSED"


class InvalidConfig(ReplicationError):
    """A setting is unknown or its value is not allowed."""

    code = "INVALID_CONFIG"


class InvalidTopic(ReplicationError):
    """A topic name breaks the syntax, or collides with another that differs only by `.` and `_`."""

    code = "INVALID_TOPIC_EXCEPTION"


class TopicAlreadyExists(ReplicationError):
    """A topic of that name exists."""

    code = "TOPIC_ALREADY_EXISTS"


class InvalidPartitions(ReplicationError):
    """The number or the numbering of partitions is not allowed."""

    code = "INVALID_PARTITIONS"


class InvalidReplicationFactor(ReplicationError):
    """More replicas were asked for than there are live brokers, or none."""

    code = "INVALID_REPLICATION_FACTOR"


class InvalidReplicaAssignment(ReplicationError):
    """An assignment names an unknown broker, one broker twice, or no live broker."""

    code = "INVALID_REPLICA_ASSIGNMENT"


class StalePlan(ReplicationError):
    """A partition is no longer as it was when its move was planned: plan again."""

    code = "STALE_PLAN"


class SchemaMismatch(ReplicationError):
    """A batch has another Arrow schema than its topic; the message names the first difference."""

    code = "SCHEMA_MISMATCH"


class InvalidSchema(ReplicationError):
    """A topic cannot have this schema: it is no schema, is too large, or does not continue the topic's present one."""

    code = "INVALID_SCHEMA"


class BatchTooLarge(ReplicationError):
    """A batch is over `batch.bytes.max`."""

    code = "MESSAGE_TOO_LARGE"


class OffsetOutOfRange(ReplicationError):
    """A read, or a group's new position, is below the log's start or past its end."""

    code = "OFFSET_OUT_OF_RANGE"


class LogTruncated(OffsetOutOfRange):
    """The log was cut below this offset since the record before it was read: records are gone, and others may have
    their offsets."""

    code = "LOG_TRUNCATED"


class UnsupportedVersion(ReplicationError):
    """A message has a version that this process does not know."""

    code = "UNSUPPORTED_VERSION"


class OutOfOrderSequence(ReplicationError):
    """An idempotent producer's batch does not follow its last one."""

    code = "OUT_OF_ORDER_SEQUENCE_NUMBER"


class UnknownProducerId(ReplicationError):
    """The log does not remember this producer, which may have written to it: its earlier batches may be stored."""

    code = "UNKNOWN_PRODUCER_ID"


class InvalidProducerEpoch(ReplicationError):
    """Another process has written as this producer: a newer incarnation, which fences this one, or a producer with the
    same id."""

    code = "INVALID_PRODUCER_EPOCH"


class AuthenticationFailed(ReplicationError):
    """A peer did not prove who it is: its token is missing or wrong, or it has no certificate that its CA signed.

    Whoever has the port of a broker that has ended says so, too: the routes may be stale."""

    code = "AUTHENTICATION_FAILED"
    stale_routes = True


class GroupAuthorizationFailed(ReplicationError):
    """The principal may not do this with the consumer group."""

    code = "GROUP_AUTHORIZATION_FAILED"


class ClusterAuthorizationFailed(ReplicationError):
    """Whoever asked has no such right on the cluster. Some requests are of brokers, controllers and guardians alone."""

    code = "CLUSTER_AUTHORIZATION_FAILED"


class TopicAuthorizationFailed(ReplicationError):
    """Whoever asked has no such right on the topic."""

    code = "TOPIC_AUTHORIZATION_FAILED"


class ElectionNotNeeded(ReplicationError):
    """The partition already has a leader, or the leader that was asked for."""

    code = "ELECTION_NOT_NEEDED"


class LossNotAcknowledged(ReplicationError):
    """The partition has no possible loss to acknowledge, or more of it than the caller knows of."""

    code = "LOSS_NOT_ACKNOWLEDGED"


class IllegalTransition(ReplicationError):
    """A state machine has no such transition: the message names both states."""

    code = "ILLEGAL_STATE_TRANSITION"


class NoReassignmentInProgress(ReplicationError):
    """There is nothing to cancel."""

    code = "NO_REASSIGNMENT_IN_PROGRESS"


class PreferredLeaderNotAvailable(ReplicationError):
    """The first replica is not in the ISR, or may not lead at present."""

    code = "PREFERRED_LEADER_NOT_AVAILABLE"


class EligibleLeadersNotAvailable(ReplicationError):
    """No replica that this kind of election may choose from is alive."""

    code = "ELIGIBLE_LEADERS_NOT_AVAILABLE"


# States that pass: a retry may succeed.


class UnknownTopicOrPartition(ReplicationError):
    """This broker or controller knows no such topic or partition (yet)."""

    code = "UNKNOWN_TOPIC_OR_PARTITION"
    retriable = True
    stale_routes = True


class UnknownSchemaVersion(SchemaMismatch):
    """A batch has all columns of its topic, and nullable ones after them: its schema version is not known here yet."""

    code = "UNKNOWN_SCHEMA_VERSION"
    retriable = True


class NotLeader(ReplicationError):
    """The broker does not lead this partition."""

    code = "NOT_LEADER_OR_FOLLOWER"
    retriable = True
    stale_routes = True


class LeaderNotAvailable(ReplicationError):
    """The partition has no leader at the moment."""

    code = "LEADER_NOT_AVAILABLE"
    retriable = True
    stale_routes = True


class FencedLeaderEpoch(ReplicationError):
    """The request names an older leader epoch than the one here."""

    code = "FENCED_LEADER_EPOCH"
    retriable = True
    stale_routes = True


class UnknownLeaderEpoch(ReplicationError):
    """The request names a newer leader epoch than this broker knows."""

    code = "UNKNOWN_LEADER_EPOCH"
    retriable = True


class OffsetNotAvailable(ReplicationError):
    """The leader has only begun to lead, and does not know yet how much of its log is committed."""

    code = "OFFSET_NOT_AVAILABLE"
    retriable = True
    stale_routes = True  # it may not lead any more, and never find out


class EpochBehindLog(ReplicationError):
    """The command's leader epoch is below the last one of the log: ZooKeeper is as of an earlier time (Z2)."""

    code = "LEADER_EPOCH_BEHIND_LOG"


class StaleBrokerEpoch(ReplicationError):
    """The request comes from, or is for, an earlier registration of a broker."""

    code = "STALE_BROKER_EPOCH"
    retriable = True


class InvalidUpdateVersion(ReplicationError):
    """A conditional write found another partition epoch than the one that it was decided against."""

    code = "INVALID_UPDATE_VERSION"


class IneligibleReplica(ReplicationError):
    """A replica may not join the ISR: it is not registered at the broker epoch of its fetches, or is shutting down."""

    code = "INELIGIBLE_REPLICA"


class StaleControllerEpoch(ReplicationError):
    """The command comes from a deposed controller."""

    code = "STALE_CONTROLLER_EPOCH"


class StaleLease(ReplicationError):
    """Another guardian has taken over this broker."""

    code = "STALE_LEASE"


class NotController(ReplicationError):
    """This process is not the controller, or has been deposed."""

    code = "NOT_CONTROLLER"
    retriable = True
    stale_routes = True


class MisroutedCall(ReplicationError):
    """The peer is of another cluster than the call was for: it has taken over the address of an earlier process."""

    code = "MISROUTED_CALL"
    retriable = True
    stale_routes = True


class NotEnoughReplicas(ReplicationError):
    """The ISR is below min.insync.replicas: acks=all writes are refused until followers catch up."""

    code = "NOT_ENOUGH_REPLICAS"
    retriable = True


class NotReady(ReplicationError):
    """The process is starting, and has not read its state yet."""

    code = "NOT_READY"
    retriable = True
    stale_routes = True


class BrokerNotAvailable(ReplicationError):
    """A peer cannot be reached."""

    code = "BROKER_NOT_AVAILABLE"
    retriable = True
    stale_routes = True


class ClusterNotFound(ReplicationError):
    """Nobody has ever answered where the cluster is said to be, or no broker was there, and the controller alone."""

    code = "CLUSTER_NOT_FOUND"


class NotInstalled(ReplicationError):
    """A package is missing that an extra of spark_replication brings."""

    code = "NOT_INSTALLED"


class RequestTimedOut(ReplicationError):
    """The deadline passed before an answer came."""

    code = "REQUEST_TIMED_OUT"
    retriable = True


class NotCoordinator(ReplicationError):
    """The broker does not coordinate the group: another does, or it is still reading the groups' log."""

    code = "NOT_COORDINATOR"
    retriable = True
    stale_routes = True


class UnknownGroup(ReplicationError):
    """Nobody has heard of this consumer group."""

    code = "GROUP_ID_NOT_FOUND"


class UnknownMember(ReplicationError):
    """The group has no such member (any longer): it has to join again."""

    code = "UNKNOWN_MEMBER_ID"


class FencedMemberEpoch(ReplicationError):
    """The member has joined again since, or does not own the partition any longer: nothing was changed."""

    code = "FENCED_MEMBER_EPOCH"


class GroupNotEmpty(ReplicationError):
    """The group has members: what is asked for needs a group without."""

    code = "NON_EMPTY_GROUP"


class Overloaded(ReplicationError):
    """A bounded queue is full: slow down and retry."""

    code = "THROTTLING_QUOTA_EXCEEDED"
    retriable = True


class StorageFailed(ReplicationError):
    """The disk is full or failing."""

    code = "KAFKA_STORAGE_ERROR"
    retriable = True
    stale_routes = True


# Errors of what a process finds on disk or when it starts.


class CorruptLog(ReplicationError):
    """Stored bytes do not match their checksum or do not parse."""

    code = "CORRUPT_MESSAGE"


class CorruptState(ReplicationError):
    """A value in ZooKeeper or in a small state file does not parse; the message names the path."""

    code = "CORRUPT_STATE"


class DirectoryInUse(ReplicationError):
    """Another process lives in this log directory."""

    code = "LOG_DIRECTORY_IN_USE"


class WrongCluster(ReplicationError):
    """A directory or a peer belongs to another cluster."""

    code = "INCONSISTENT_CLUSTER_ID"


class TableChanged(ReplicationError):
    """Another writer has committed to a topic's table since it was loaded, about the same partition: what was to be
    committed was not, and never will be. Load the table again."""

    code = "TABLE_CHANGED"
    retriable = True


class TableNotSealed(ReplicationError):
    """A topic's table must be sealed first, so that no offset that it has is given again. That is under way."""

    code = "TABLE_NOT_SEALED"
    retriable = True


class StartFailed(ReplicationError):
    """A process could not be started; the message says what to install or change."""

    code = "START_FAILED"


class StartGivenUp(ReplicationError):
    """The start was given up by whoever had asked for it."""

    code = "START_GIVEN_UP"


class SparkGone(ReplicationError):
    """This process's Spark session has been stopped, or its JVM does not answer: nothing can be guarded from here."""

    code = "SPARK_GONE"
