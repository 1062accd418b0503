"""The mark of a broker that shuts down, in its registration: nobody lets it into an ISR, or elects it, then (L2, I3).

| registration's node  | epoch's node        | then    | why                                                     |
| -------------------- | ------------------- | ------- | ------------------------------------------------------- |
| marked               | any                 | Settled | by an earlier call, or only the answer was lost         |
| as it was registered | at its epoch        | Send    | the mark                                                |
| as it was registered | none, or at another | Refused | StaleBrokerEpoch: that registration is over             |
| any other, or none   | any                 | Refused | StaleBrokerEpoch                                        |
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from spark_replication.core.claims.claim import (
    RACES_MAX,
    ClaimRefused,
    ClaimSend,
    ClaimSettled,
    Kind,
    NodeCheck,
    NodePlace,
    Nodes,
    NodeWrite,
)
from spark_replication.errors import StaleBrokerEpoch
from spark_replication.model import BrokerId, Registration


class Marking(NamedTuple):
    broker: BrokerId
    #: As it was made, without the mark.
    registration: Registration

    def __str__(self) -> str:
        return f"the mark of broker {self.broker}, which shuts down,"

    @property
    def sends_max(self) -> int:
        return RACES_MAX

    @property
    def reads(self) -> tuple[NodePlace, ...]:
        return NodePlace(Kind.BROKER_EPOCH, self.broker), NodePlace(Kind.REGISTRATION, self.broker)

    def decide(
        self, nodes: Nodes, sent: Registration | None
    ) -> ClaimSend[Registration] | ClaimSettled[Registration] | ClaimRefused:
        epoch_at, registration_at = self.reads
        known, present = nodes[epoch_at], nodes[registration_at]
        marked = replace(self.registration, shutting_down=True)
        if present is not None and present.value == marked:
            return ClaimSettled(marked)
        epoch = self.registration.epoch
        is_there = present is not None and present.value == self.registration
        if present is None or not is_there or known is None or known.version != epoch:
            return ClaimRefused(StaleBrokerEpoch(f"broker {self.broker} is no longer registered at epoch {epoch}"))
        return ClaimSend((NodeCheck(epoch_at, epoch), NodeWrite(registration_at, marked, present.version)), marked)
