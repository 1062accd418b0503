"""A broker's registration: its next epoch and its ephemeral node in one multi() (B1, I8).

epoch is the znode version of /brokers/epochs/[id], so only a registration may write that node.
"""

from __future__ import annotations

import logging

import msgspec

from spark_replication.core.law.clean_chain import next_epoch
from spark_replication.errors import DirectoryInUse, NotReady, RequestTimedOut
from spark_replication.model import BrokerEpoch, BrokerId, Registration, decode, encode
from spark_replication.zk import paths
from spark_replication.zk.operations import (
    Committed,
    Create,
    Delete,
    Node,
    Operation,
    Rejected,
    RejectionReason,
    SetData,
)
from spark_replication.zk.session import ConnectionLost, Session

REGISTER_ATTEMPTS_MAX = 20

log = logging.getLogger(__name__)


class Registering:
    """One registration, over as many attempts as races and lost answers need."""

    def __init__(self, session: Session, broker: BrokerId, wanted: Registration) -> None:
        """wanted: its epoch is not known yet."""
        self._session = session
        self._broker = broker
        self._wanted = wanted
        self._sent: tuple[Registration, BrokerEpoch] | None = None

    def run(self) -> tuple[Registration, BrokerEpoch]:
        for _ in range(REGISTER_ATTEMPTS_MAX):
            known = self._session.read_now(paths.broker_epoch(self._broker))
            present = self._session.read_now(paths.broker_id(self._broker))
            if self._sent is not None and self._took_effect(self._sent, known, present):
                return self._sent
            operations = self._operations(known, present)
            assert self._sent is not None
            try:
                outcome = self._session.commit_now(operations)
            except ConnectionLost as error:
                log.info("broker %s registers again: %s", self._broker, error)
                continue
            if isinstance(outcome, Committed):
                return self._sent
            self._raise_unless_race(outcome, known)
        raise RequestTimedOut(
            f"{paths.broker_id(self._broker)} or its epoch changed {REGISTER_ATTEMPTS_MAX} times during registration: "
            "is another process starting as this broker?"
        )

    def _operations(self, known: Node | None, present: Node | None) -> list[Operation]:
        epoch = self._next_epoch(known)
        registration = msgspec.structs.replace(self._wanted, epoch=epoch.epoch)
        self._sent = (registration, epoch)
        operations: list[Operation] = [
            Create(paths.broker_epoch(self._broker), encode(epoch))
            if known is None
            else SetData(paths.broker_epoch(self._broker), encode(epoch), known.version)
        ]
        if present is not None:
            self._check_ours(present)
            operations.append(Delete(paths.broker_id(self._broker), present.version))
        operations.append(Create(paths.broker_id(self._broker), encode(registration), ephemeral=True))
        return operations

    def _next_epoch(self, known: Node | None) -> BrokerEpoch:
        last = None if known is None else decode(known.data, BrokerEpoch, paths.broker_epoch(self._broker))
        if last is not None and known is not None and last.epoch != known.version:
            last = msgspec.structs.replace(last, epoch=known.version)  # written by hand: the znode's version counts
        return next_epoch(last, self._wanted)

    def _check_ours(self, present: Node) -> None:
        """The node of an earlier life may go only if that life was in the directory whose lock we hold."""
        if present.owner == self._session.id:
            return
        there = decode(present.data, Registration, paths.broker_id(self._broker))
        mine = (self._wanted.boot_id, self._wanted.directory_mark)
        if (there.boot_id, there.directory_mark) == mine:
            return
        raise DirectoryInUse(
            f"broker {self._broker} is registered from {there.address}, but not from this directory on this boot of "
            "this host: a copied log directory was started, or the host has just rebooted. Remove the copy; after a "
            "reboot try again once that session has run out"
        )

    def _took_effect(self, sent: tuple[Registration, BrokerEpoch], known: Node | None, present: Node | None) -> bool:
        registration, epoch = sent
        return (
            known is not None
            and present is not None
            and known.version == epoch.epoch
            and known.data == encode(epoch)
            and present.owner == self._session.id
            and present.data == encode(registration)
        )

    def _raise_unless_race(self, outcome: Rejected, known: Node | None) -> None:
        if known is None and outcome.operation == 0 and outcome.reason is RejectionReason.NO_NODE:
            raise NotReady(f"{paths.BROKER_EPOCHS} is not in ZooKeeper: no controller has run yet, start one")
