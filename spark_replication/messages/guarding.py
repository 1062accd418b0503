"""Guardian to broker and controller, and what a broker tells its controller of itself."""

from __future__ import annotations

from typing import Literal

import msgspec

from spark_replication.messages.envelope import Message
from spark_replication.model import BrokerId, Epoch, ReplicaOf


class RenewLease(Message, frozen=True, kw_only=True):
    """(controller_epoch, attempt) orders leases: a later one takes over, an earlier one is refused."""

    controller_epoch: Epoch
    attempt: int
    lease_ms: int


class LeaseAnswer(Message, frozen=True, kw_only=True):
    broker_id: BrokerId
    broker_epoch: Epoch
    pid: int


class BrokerDied(Message, frozen=True, kw_only=True):
    """A guardian saw this life of the broker end."""

    broker_id: BrokerId
    broker_epoch: Epoch


class DiskFailed(Message, frozen=True, kw_only=True):
    """This life of the broker cannot keep these: its disk is full or failing."""

    broker_id: BrokerId
    broker_epoch: Epoch
    replicas: tuple[ReplicaOf, ...]


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """Where a broker serves, or did until its end."""

    broker_epoch: Epoch
    host: str
    port: int
    pid: int


class Guarding(Message, frozen=True, kw_only=True):
    """A guardian says, again and again, whom it guards; the answer says whether it is still to. submission: of the
    fleet's job that it belongs to. trouble: why its broker does not start, or nothing."""

    guardian: int
    controller_epoch: Epoch
    submission: int
    broker_id: BrokerId
    serving: Serving | None
    log_dir: str
    adopted: bool
    restarts: int
    trouble: str


Order = Literal["guard", "leave", "shut_down"]


class GuardingAnswer(Message, frozen=True, kw_only=True):
    """leave: the broker serves on under its lease. shut_down: it stops, and so does its guardian."""

    order: Order


class Shutdown(Message, frozen=True, kw_only=True):
    """Asks a broker for a controlled stop (B3), which begins after the answer."""
