"""What a reassignment would move, before anything moves (A4): from where to where, and how many bytes.

A Plan is made of targets, which core.moves.planning makes of a goal. Applied, each of its moves is checked against what
is there then.
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
# What a broker is taken to send where nobody says it: about what one disk and a network of 1 Gbit/s give.
BYTES_PER_SECOND = 100 << 20
_COLUMNS = ("partition", "from", "to", "adds", "drops", "bytes")
_UNITS = ("KiB", "MiB", "GiB", "TiB")


class Move(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """present: its replicas as it was planned; of one that was being reassigned then, those being removed too.

    bytes: of its log, which each of the added replicas will fetch; None: unknown, nobody that has it answered. leader:
    who sends them, as it was planned.
    """

    partition: str
    topic_id: str
    present: tuple[BrokerId, ...]
    target: tuple[BrokerId, ...]
    bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
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
        """None: unknown. A move that only drops replicas, or gives them another order, copies nothing."""
        return 0 if not self.adding else None if self.bytes is None else self.bytes * len(self.adding)


class Plan(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As JSON it is a file that a person can read, keep, and have applied later."""

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
        """In all, as far as it is known: see `unknown`."""
        return sum(move.bytes_to_copy or 0 for move in self.moves)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The partitions of which nobody knows how much there is to copy."""
        return tuple(move.partition for move in self.moves if move.bytes_to_copy is None)

    def estimate_s(self, bytes_per_second: int) -> float | None:
        """How long it takes if each broker sends at this pace, and receives as fast: as long as the broker that sends
        most. None: of some partition nobody knows how much there is, or who leads it."""
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
        """For notebooks."""
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
    """Of so many bytes, for people."""
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
    """Its replicas, or the target of the reassignment that is under way."""
    return tuple(replica for replica in command.replicas if replica not in command.removing)


def planned(
    targets: Assignment, present: Mapping[TopicPartition, PartitionCommand], bytes_of: Mapping[TopicPartition, int]
) -> Plan:
    """Of those that change something, the most to copy first: it takes longest. What nobody knows comes before it."""
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
