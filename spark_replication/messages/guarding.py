"""What guardians send to brokers and to the controller, and what a broker reports to the controller."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from spark_replication.messages.envelope import Message, Part
from spark_replication.model import OFFSET_MAX, BrokerId, Count, Epoch, ReplicaOf

Attempt = Annotated[int, msgspec.Meta(ge=-1, le=OFFSET_MAX)]


class RenewLease(Message, frozen=True, kw_only=True):
    """Renew a broker's lease. (controller_epoch, attempt) orders leases: a later one takes over, an earlier one is
    refused."""

    controller_epoch: Epoch
    attempt: Attempt
    lease_ms: Count


class LeaseAnswer(Message, frozen=True, kw_only=True):
    broker_id: BrokerId
    broker_epoch: Epoch
    pid: int
    #: Whether the broker knows of a topic that is a table, so that there is to be a writer beside it.
    has_tables: bool = False


class BrokerDied(Message, frozen=True, kw_only=True):
    """Report the end of a broker's process, which its guardian saw."""

    broker_id: BrokerId
    #: Not the broker epoch: that changes whenever the process registers again.
    incarnation: str


class DiskFailed(Message, frozen=True, kw_only=True):
    """Report replicas that this life of the broker cannot keep: its disk is full or failing."""

    broker_id: BrokerId
    broker_epoch: Epoch
    replicas: tuple[ReplicaOf, ...]


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """Where a broker serves, or served until its end."""

    broker_epoch: Epoch
    host: str
    port: int
    pid: int


class Guarding(Message, frozen=True, kw_only=True):
    """Report which broker a guardian guards. A guardian repeats this at short intervals; the answer is its order."""

    guardian: int
    controller_epoch: Epoch
    #: The submission of the fleet's job that the guardian belongs to.
    submission: int
    #: None while the guardian idles.
    broker_id: BrokerId | None
    #: The brokers whose directories were on the guardian's host when it looked.
    found: tuple[BrokerId, ...] = ()
    serving: Serving | None
    log_dir: str
    adopted: bool
    restarts: int
    #: Why the broker does not start; empty if it does.
    trouble: str


Order = Literal["guard", "leave", "shut_down"]


class Kept(Part, frozen=True, kw_only=True):
    """A registered broker with no guardian on its host (H3)."""

    broker_id: BrokerId
    address: str
    incarnation: str


class GuardingAnswer(Message, frozen=True, kw_only=True):
    """The answer to Guarding."""

    #: With leave, the guardian ends and its broker serves on under its lease. With shut_down, both stop.
    order: Order
    #: The brokers whose leases the guardian renews from afar, beside its own broker's.
    keep: tuple[Kept, ...] = ()


class Shutdown(Message, frozen=True, kw_only=True):
    """Ask a broker for a controlled stop (B3), which begins after the answer. An earlier lease than the broker's is
    refused, as for RenewLease."""

    controller_epoch: Epoch
    attempt: Attempt
    #: All brokers stop: this one need not hand over, since nobody will be there to lead.
    with_all: bool = False
