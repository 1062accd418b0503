"""The claim to a broker id that nobody else has.

| the nodes              | then    | why                                                                       |
| ---------------------- | ------- | ------------------------------------------------------------------------- |
| one not readable       | Refused | CorruptState: who commands, or the next id, is not known                  |
| a later controller's   | Refused | StaleLease: it may have all brokers that are wanted, unknown to this one  |
| no sequence            | Send    | the first id                                                              |
| a sequence             | Send    | its next id. One whose answer was lost is never used: nobody knows whose it is |
"""

from __future__ import annotations

from typing import NamedTuple

from spark_replication.core.claims.campaigning import EPOCH
from spark_replication.core.claims.claim import (
    ClaimRefused,
    ClaimSend,
    Kind,
    NodeAsRead,
    NodeCheck,
    NodePlace,
    Nodes,
    NodeWrite,
)
from spark_replication.errors import CorruptState, StaleLease
from spark_replication.model import ABSENT, BrokerId, BrokerSequence, ControllerEpoch, Epoch

FIRST_BROKER_ID = 1
SENDS_MAX = 100  # of those who claim at one time, one gets its id in each round
SEQUENCE = NodePlace(Kind.BROKER_SEQUENCE)


class Numbering(NamedTuple):
    #: Of the driver for whom the id is; None if there is no such driver.
    controller_epoch: Epoch | None = None

    def __str__(self) -> str:
        return "a broker id"

    @property
    def sends_max(self) -> int:
        return SENDS_MAX

    @property
    def reads(self) -> tuple[NodePlace, ...]:
        return (SEQUENCE,) if self.controller_epoch is None else (EPOCH, SEQUENCE)

    def decide(self, nodes: Nodes, sent: BrokerId | None) -> ClaimSend[BrokerId] | ClaimRefused:
        checks: tuple[NodeCheck, ...] = ()
        commands: NodeAsRead[ControllerEpoch] | None = nodes.get(EPOCH)
        if self.controller_epoch is not None and commands is not None:
            if isinstance(commands.value, CorruptState):
                return ClaimRefused(commands.value)
            if commands.value.epoch > self.controller_epoch:
                return ClaimRefused(
                    StaleLease(
                        f"controller epoch {commands.value.epoch} commands: no new broker is begun for the driver of "
                        f"epoch {self.controller_epoch}"
                    )
                )
            checks = (NodeCheck(EPOCH, commands.version),)
        known: NodeAsRead[BrokerSequence] | None = nodes[SEQUENCE]
        if known is None:
            allocated, version = FIRST_BROKER_ID, ABSENT
        elif isinstance(known.value, CorruptState):
            return ClaimRefused(known.value)
        else:
            allocated, version = known.value.next, known.version
        return ClaimSend((*checks, NodeWrite(SEQUENCE, BrokerSequence(next=allocated + 1), version)), allocated)
