"""What Kafka's tools tell of topics and of the metadata log."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from spark_replication.errors import StartFailed

UNCHANGED = -2  # in place of a leader
_PARTITION = re.compile(
    r"Partition: (?P<partition>\d+)\s+Leader: (?P<leader>\d+|none)\s+"
    r"Replicas: (?P<replicas>[\d,]+)\s+Isr: (?P<isr>[\d,]*)"
)
_LEADER_OF_QUORUM = re.compile(r"^LeaderId:\s+(?P<node>\d+)", re.MULTILINE)
_RECORD = re.compile(r"^\| offset: \d+ CreateTime: (?P<at_ms>\d+) .* payload: (?P<payload>\{.*\})$", re.MULTILINE)


class Described(NamedTuple):
    partition: int
    #: None: nobody leads.
    leader: int | None
    #: The preferred one first.
    replicas: list[int]
    #: In the order of the replicas.
    isr: list[int]


class _Data(msgspec.Struct, rename="camel"):
    """What a metadata record says. Records of other types lack some of it."""

    name: str = ""
    topic_id: str = ""
    partition_id: int = -1
    leader: int = UNCHANGED


class _Record(msgspec.Struct):
    type: str
    data: _Data


def described(printed: str) -> list[Described]:
    """The partitions of a topic. Raises StartFailed if there are none."""
    found = [_described(match) for match in _PARTITION.finditer(printed)]
    if not found:
        raise StartFailed(f"Kafka described no partition: {printed[-1_000:]}")
    return found


def _described(match: re.Match[str]) -> Described:
    replicas = [int(each) for each in match["replicas"].split(",")]
    isr = {int(each) for each in match["isr"].split(",") if each}
    return Described(
        partition=int(match["partition"]),
        leader=None if match["leader"] == "none" else int(match["leader"]),
        replicas=replicas,
        isr=[each for each in replicas if each in isr],
    )


def leader_of_quorum(printed: str) -> int:
    found = _LEADER_OF_QUORUM.search(printed)
    if found is None:
        raise StartFailed(f"Kafka told no leader of its quorum: {printed[-1_000:]}")
    return int(found["node"])


def elections_s(dumped: str, topic: str, since_s: float) -> dict[int, float]:
    """When each partition last got another leader since then: seconds since 1970, of the newest topic of this name."""
    topic_id = ""
    found: dict[int, float] = {}
    for match in _RECORD.finditer(dumped):
        record, at_s = msgspec.json.decode(match["payload"], type=_Record), int(match["at_ms"]) / 1_000
        data = record.data
        if record.type == "TOPIC_RECORD" and data.name == topic:
            topic_id = data.topic_id
            found.clear()
        is_change = record.type == "PARTITION_CHANGE_RECORD" and data.topic_id == topic_id and at_s >= since_s
        if is_change and data.leader >= 0:
            found[data.partition_id] = at_s
    return found
