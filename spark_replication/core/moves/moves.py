"""Plans: what a reassignment would move, from where to where, and how many bytes (A4).

core.moves.planning makes targets of a goal, and `planned` makes a Plan of targets. When a plan is applied, each of its
moves is checked against the replicas that the partition has then.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from spark_replication.decoding import UNDECODABLE, from_json
from spark_replication.errors import InvalidRequest, UnknownTopicOrPartition
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.requests import PlannedFrom, Reassign
from spark_replication.model import BrokerId, TopicPartition, Value, require

Assignment = Mapping[TopicPartition, tuple[BrokerId, ...]]

APPLIED_TOGETHER_MAX = 1_000  # moves of one request: the controller answers it once all of them have begun
# The pace of a broker that is assumed where none is given: about that of one disk and a network of 1 Gbit/s.
BYTES_PER_SECOND = 100 << 20
_COLUMNS = ("partition", "from", "to", "adds", "drops", "bytes")
_UNITS = ("KiB", "MiB", "GiB", "TiB")


class Move(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    partition: str
    topic_id: str
    #: Its replicas when it was planned. If it was being reassigned then, they include those being removed.
    present: tuple[BrokerId, ...]
    target: tuple[BrokerId, ...]
    #: The size of its log, which each added replica will fetch. None if unknown: no broker that has it answered.
    bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    #: Its leader when it was planned, which sends the bytes.
    leader: BrokerId | None = None

    def __post_init__(self) -> None:
        TopicPartition.parse(self.partition)
        require(bool(self.target), f"{self.partition} is to be on no broker")

    @property
    def adding(self) -> tuple[BrokerId, ...]:
        return tuple(replica for replica in self.target if replica not in self.present)

    @property
    def removing(self) -> tuple[BrokerId, ...]:
        return tuple(replica for replica in self.present if replica not in self.target)

    @property
    def bytes_to_copy(self) -> int | None:
        """The bytes to copy; None if unknown. A move that only drops or reorders replicas copies nothing."""
        return 0 if not self.adding else None if self.bytes is None else self.bytes * len(self.adding)


class Plan(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The moves of a reassignment. As JSON it is a file that a person can read, keep, and have applied later."""

    moves: tuple[Move, ...]

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        try:
            return from_json(text.encode() if isinstance(text, str) else text, cls)
        except UNDECODABLE as error:
            raise InvalidRequest(f"this is no plan of a reassignment: {error}. Make one by `reassign plan`") from error

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    @property
    def bytes_to_copy(self) -> int:
        """The bytes to copy in all, as far as they are known: see `unknown`."""
        return sum(move.bytes_to_copy or 0 for move in self.moves)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The partitions of which nobody knows how much there is to copy."""
        return tuple(move.partition for move in self.moves if move.bytes_to_copy is None)

    def estimate_s(self, bytes_per_second: int) -> float | None:
        """The time it takes if each broker sends at this pace, and receives as fast: that of the broker that sends
        most. None if the size or the leader of some partition is unknown."""
        sent: Counter[BrokerId] = Counter()
        for move in self.moves:
            if move.bytes_to_copy is None or (move.bytes_to_copy and move.leader is None):
                return None
            if move.leader is not None:
                sent[move.leader] += move.bytes_to_copy
        return max(sent.values(), default=0) / bytes_per_second

    def requests(self) -> Iterator[Reassign]:
        for start in range(0, len(self.moves), APPLIED_TOGETHER_MAX):
            moves = self.moves[start : start + APPLIED_TOGETHER_MAX]
            yield Reassign(
                targets={move.partition: move.target for move in moves},
                planned_from={
                    move.partition: PlannedFrom(topic_id=move.topic_id, replicas=move.present) for move in moves
                },
            )

    def __str__(self) -> str:
        """A table, and what it comes to."""
        if not self.moves:
            return "nothing is to be moved"
        rows = [_COLUMNS, *(_row(move) for move in self.moves)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, self._sum()])

    def _repr_html_(self) -> str:
        """The same table, for notebooks."""
        return f"<pre>{html.escape(str(self))}</pre>"

    def _sum(self) -> str:
        copies = sum(len(move.adding) for move in self.moves)
        text = f"{len(self.moves)} partitions change, {copies} replicas are copied: {size_text(self.bytes_to_copy)}"
        unknown = self.unknown
        return f"{text}, and what is in {len(unknown)} of unknown size" if unknown else text


def _row(move: Move) -> tuple[str, ...]:
    lists = (", ".join(map(str, each)) for each in (move.present, move.target, move.adding, move.removing))
    return move.partition, *lists, size_text(move.bytes_to_copy)


def size_text(count: int | None) -> str:
    """A number of bytes, for people."""
    if count is None:
        return "unknown"
    if count < 1024:
        return f"{count} B"
    scaled = float(count)
    for unit in _UNITS:
        scaled /= 1024
        if scaled < 1024 or unit == _UNITS[-1]:
            break
    return f"{scaled:.1f} {unit}"


def time_text(seconds: float | None) -> str:
    """A duration, for people."""
    if seconds is None:
        return "unknown"
    for unit, size in (("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def heading_for(command: PartitionCommand) -> tuple[BrokerId, ...]:
    """The replicas of the partition, or the target of the reassignment that is under way."""
    return tuple(replica for replica in command.replicas if replica not in command.removing)


def planned(
    targets: Assignment, present: Mapping[TopicPartition, PartitionCommand], bytes_of: Mapping[TopicPartition, int]
) -> Plan:
    """The plan of the targets that change something. The largest copy comes first, since it takes longest; copies of
    unknown size come before it."""
    moves = []
    for partition, target in targets.items():
        command = present.get(partition)
        if command is None:
            raise UnknownTopicOrPartition(f"there is no partition {partition}: check its name")
        if target != heading_for(command):
            move = Move(
                partition=str(partition),
                topic_id=command.topic_id,
                present=command.replicas,
                target=target,
                bytes=bytes_of.get(partition),
                leader=command.state.leader,
            )
            moves.append((partition, move))
    moves.sort(key=lambda found: (_least_first(found[1].bytes_to_copy), found[0]))
    return Plan(moves=tuple(move for _, move in moves))


def _least_first(bytes_to_copy: int | None) -> float:
    return float("-inf") if bytes_to_copy is None else -bytes_to_copy
