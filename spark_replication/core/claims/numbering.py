"""The claim to a broker id that nobody else has.

| the sequence's node | then    | why                                                                       |
| ------------------- | ------- | ------------------------------------------------------------------------- |
| not readable        | Refused | CorruptState: the next id is not known                                    |
| none                | Send    | the first id                                                              |
| at a version        | Send    | its next id. One whose answer was lost is never used: nobody knows whose it is |
"""

from __future__ import annotations

from typing import NamedTuple

from spark_replication.core.claims.claim import ClaimRefused, ClaimSend, Kind, NodeAsRead, NodePlace, Nodes, NodeWrite
from spark_replication.errors import CorruptState
from spark_replication.model import ABSENT, BrokerId, BrokerSequence

FIRST_BROKER_ID = 1
SENDS_MAX = 100  # of those who claim at one time, one gets its id in each round
SEQUENCE = NodePlace(Kind.BROKER_SEQUENCE)


class Numbering(NamedTuple):
    def __str__(self) -> str:
        return "a broker id"

    @property
    def sends_max(self) -> int:
        return SENDS_MAX

    @property
    def reads(self) -> tuple[NodePlace, ...]:
        return (SEQUENCE,)

    def decide(self, nodes: Nodes, sent: BrokerId | None) -> ClaimSend[BrokerId] | ClaimRefused:
        known: NodeAsRead[BrokerSequence] | None = nodes[SEQUENCE]
        if known is None:
            allocated, version = FIRST_BROKER_ID, ABSENT
        elif isinstance(known.value, CorruptState):
            return ClaimRefused(known.value)
        else:
            allocated, version = known.value.next, known.version
        return ClaimSend((NodeWrite(SEQUENCE, BrokerSequence(next=allocated + 1), version),), allocated)
