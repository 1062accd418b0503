"""The claim to command: /controller and the next controller epoch in one multi() (C1).

| /controller_epoch | /controller                       | then          | why                                          |
| ----------------- | --------------------------------- | ------------- | -------------------------------------------- |
| any               | mine, as sent                     | Settled       | only the answer was lost                     |
| not readable      | any other                         | Refused       | CorruptState: the next epoch is not known    |
| any               | another's, or not readable        | Settled: None | another commands                             |
| none              | none                              | Send          | the first epoch and the node                 |
| at a version      | none                              | Send          | the next epoch and the node                  |
| any               | mine, of an earlier attempt       | Send          | the same, and that node goes                 |
| any               | of the directory that I hold      | Send          | the same, and that node goes: its writer is  |
|                   |                                   |               | dead, whatever its session says              |

The epoch is read first. A controller that wins after that has raised it, so this multi() fails and its node stays.
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
    NodeAsRead,
    NodePlace,
    Nodes,
    NodeWrite,
    Operation,
    Remove,
)
from spark_replication.errors import CorruptState
from spark_replication.model import ABSENT, ControllerEpoch, ControllerInfo

FIRST_EPOCH = 1
EPOCH = NodePlace(Kind.CONTROLLER_EPOCH)
CONTROLLER = NodePlace(Kind.CONTROLLER)


class Won(NamedTuple):
    info: ControllerInfo
    #: The version of /controller_epoch that every multi() of this controller checks.
    epoch_version: int


class Campaigning(NamedTuple):
    """Claims None if another commands."""

    #: Without an epoch, which is not known yet. `held` is the directory whose lock this process holds.
    wanted: ControllerInfo

    def __str__(self) -> str:
        return f"the campaign of {self.wanted.id}"

    @property
    def sends_max(self) -> int:
        return RACES_MAX

    @property
    def reads(self) -> tuple[NodePlace, ...]:
        return EPOCH, CONTROLLER

    def decide(self, nodes: Nodes, sent: Won | None) -> ClaimSend[Won | None] | ClaimSettled[Won | None] | ClaimRefused:
        known: NodeAsRead[ControllerEpoch] | None = nodes[EPOCH]
        present: NodeAsRead[ControllerInfo] | None = nodes[CONTROLLER]
        if sent is not None and present is not None and present.is_as_sent(sent.info):
            return ClaimSettled(sent)
        if known is None:
            epoch, version = FIRST_EPOCH, ABSENT
        elif isinstance(known.value, CorruptState):
            return ClaimRefused(known.value)
        else:
            epoch, version = known.value.epoch + 1, known.version
        if present is not None and not self._goes(present):
            return ClaimSettled(None)
        info = replace(self.wanted, epoch=epoch)
        operations: list[Operation] = [] if present is None else [Remove(CONTROLLER, present.version)]
        operations += [NodeWrite(CONTROLLER, info), NodeWrite(EPOCH, ControllerEpoch(epoch=epoch), version)]
        return ClaimSend(tuple(operations), Won(info, version + 1))

    def _goes(self, present: NodeAsRead[ControllerInfo]) -> bool:
        if present.is_mine:
            return True
        held = self.wanted.held
        return held is not None and not isinstance(present.value, CorruptState) and present.value.held == held
