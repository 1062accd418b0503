"""The claim to be registered: a broker's next epoch and its ephemeral node in one multi() (B1, I8).

A broker's epoch is the version of its epoch's node, so only a registration may write that node.

| epoch's node   | registration's node              | then    | why                                               |
| -------------- | -------------------------------- | ------- | ------------------------------------------------- |
| as sent        | mine, as sent                    | Settled | only the answer was lost                          |
| not readable   | any                              | Refused | CorruptState: the chain is not known              |
| any            | not mine, not readable           | Refused | CorruptState: its life may go on                  |
| any            | of another directory or boot     | Refused | DirectoryInUse: its life may go on                |
| none           | none                             | Send    | epoch 0 and the registration                      |
| at a version   | none                             | Send    | the next epoch and the registration               |
| any            | mine, or of this directory       | Send    | the same, and that node goes: its life is over    |

"Of this directory": made on this boot of this host, in the directory whose lock this process holds.
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
from spark_replication.core.law.clean_chain import next_epoch
from spark_replication.errors import CorruptState, DirectoryInUse
from spark_replication.model import ABSENT, BrokerEpoch, BrokerId, Registration


class Registered(NamedTuple):
    registration: Registration
    epoch: BrokerEpoch


class Registering(NamedTuple):
    broker: BrokerId
    #: Without an epoch, which is not known yet.
    wanted: Registration

    def __str__(self) -> str:
        return f"the registration of broker {self.broker}"

    @property
    def sends_max(self) -> int:
        return RACES_MAX

    @property
    def reads(self) -> tuple[NodePlace, ...]:
        return NodePlace(Kind.BROKER_EPOCH, self.broker), NodePlace(Kind.REGISTRATION, self.broker)

    def decide(
        self, nodes: Nodes, sent: Registered | None
    ) -> ClaimSend[Registered] | ClaimSettled[Registered] | ClaimRefused:
        epoch_at, registration_at = self.reads
        known: NodeAsRead[BrokerEpoch] | None = nodes[epoch_at]
        present: NodeAsRead[Registration] | None = nodes[registration_at]
        if sent is not None and _took_effect(sent, known, present):
            return ClaimSettled(sent)
        if known is not None and isinstance(known.value, CorruptState):
            return ClaimRefused(known.value)
        refused = None if present is None or present.is_mine else self._refused(present)
        if refused is not None:
            return refused
        epoch = next_epoch(_last(known), self.wanted)
        registration = replace(self.wanted, epoch=epoch.epoch)
        operations: list[Operation] = [NodeWrite(epoch_at, epoch, ABSENT if known is None else known.version)]
        if present is not None:
            operations.append(Remove(registration_at, present.version))
        operations.append(NodeWrite(registration_at, registration))
        return ClaimSend(tuple(operations), Registered(registration, epoch))

    def _refused(self, present: NodeAsRead[Registration]) -> ClaimRefused | None:
        there = present.value
        if isinstance(there, CorruptState):
            return ClaimRefused(there)
        if (there.boot_id, there.directory_mark) == (self.wanted.boot_id, self.wanted.directory_mark):
            return None
        return ClaimRefused(
            DirectoryInUse(
                f"broker {self.broker} is registered from {there.address}, but not from this directory on this boot of "
                "this host: a copied log directory was started, or the host has just rebooted. Remove the copy; after "
                "a reboot try again once that session has run out"
            )
        )


def _took_effect(
    sent: Registered, known: NodeAsRead[BrokerEpoch] | None, present: NodeAsRead[Registration] | None
) -> bool:
    """Whether both nodes are as sent, the epoch's version included: a registration of an epoch that is over is none."""
    return (
        known is not None
        and (known.version, known.value) == (sent.epoch.epoch, sent.epoch)
        and present is not None
        and present.is_as_sent(sent.registration)
    )


def _last(known: NodeAsRead[BrokerEpoch] | None) -> BrokerEpoch | None:
    if known is None or isinstance(known.value, CorruptState):
        return None
    last, version = known.value, known.version
    # A person may have written the node: its version counts, not what it says.
    return last if last.epoch == version else replace(last, epoch=version, clean_since=min(last.clean_since, version))
