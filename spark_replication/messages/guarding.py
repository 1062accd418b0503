"""Guardian to broker and controller, and what a broker tells its controller of itself."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from spark_replication.messages.envelope import Message, Part
from spark_replication.model import OFFSET_MAX, BrokerId, Count, Epoch, ReplicaOf

Attempt = Annotated[int, msgspec.Meta(ge=-1, le=OFFSET_MAX)]


class RenewLease(Message, frozen=True, kw_only=True):
    """(controller_epoch, attempt) orders leases: a later one takes over, an earlier one is refused."""

    controller_epoch: Epoch
    attempt: Attempt
    lease_ms: Count


class LeaseAnswer(Message, frozen=True, kw_only=True):
    broker_id: BrokerId
    broker_epoch: Epoch
    pid: int


class BrokerDied(Message, frozen=True, kw_only=True):
    """A guardian saw this process end. Not its epoch: that changes whenever the process registers again."""

    broker_id: BrokerId
    incarnation: str


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
    fleet's job that it belongs to. broker_id: None while it idles. found: the directories that were on its host when it
    looked. trouble: why its broker does not start, or nothing."""

    guardian: int
    controller_epoch: Epoch
    submission: int
    broker_id: BrokerId | None
    found: tuple[BrokerId, ...] = ()
    serving: Serving | None
    log_dir: str
    adopted: bool
    restarts: int
    trouble: str


Order = Literal["guard", "leave", "shut_down"]


class Kept(Part, frozen=True, kw_only=True):
    """A registered broker that no guardian is near."""

    broker_id: BrokerId
    address: str
    incarnation: str


class GuardingAnswer(Message, frozen=True, kw_only=True):
    """leave: the broker serves on under its lease. shut_down: it stops, and so does its guardian. keep: whose leases it
    renews beside its own broker's."""

    order: Order
    keep: tuple[Kept, ...] = ()


class Shutdown(Message, frozen=True, kw_only=True):
    """Asks a broker for a controlled stop (B3), which begins after the answer. An earlier lease than the broker's is
    refused, as for RenewLease."""

    controller_epoch: Epoch
    attempt: Attempt
