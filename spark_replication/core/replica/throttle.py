"""A bucket that fills at bytes_per_second: how fast replicas that are being added may be copied (A3), and how much a
principal may take (transport.security.quotas).

Rules:
- A batch is never cut: the balance may fall below zero, and the next one waits until that is made up. So every copy
  makes progress, however small the limit and however large a batch.
- The bucket holds a second's worth: a copy that was idle may not make up for more than that.
- Of copies, nothing is sent for less than a tenth of a second's worth: many small answers would cost more than they
  are worth.
"""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

NO_LIMIT = 0
_LEAST_PART = 10  # of a second's worth


class Bucket(msgspec.Struct, frozen=True):
    """Invariant: the balance is at most bytes_per_second."""

    bytes_per_second: int = NO_LIMIT
    #: The bytes that may be sent, as of at_ms.
    balance: float = 0.0
    at_ms: int = 0

    @property
    def may_send(self) -> bool:
        return self.balance >= max(1.0, self.bytes_per_second / _LEAST_PART)


def limited(bucket: Bucket, bytes_per_second: int) -> Bucket:
    """The bucket with another limit."""
    return replace(bucket, bytes_per_second=bytes_per_second, balance=min(bucket.balance, bytes_per_second))


def refilled(bucket: Bucket, now_ms: int) -> Bucket:
    gained = bucket.bytes_per_second * max(0, now_ms - bucket.at_ms) / 1000
    return replace(bucket, balance=min(bucket.balance + gained, bucket.bytes_per_second), at_ms=now_ms)


def granted(bucket: Bucket) -> tuple[Bucket, int]:
    """The bucket without what it holds, and that many bytes to send. `returned` gives back what was not sent."""
    allowed = int(bucket.balance)
    return replace(bucket, balance=bucket.balance - allowed), allowed


def returned(bucket: Bucket, allowed: int, sent: int) -> Bucket:
    """Give back what was not sent; what was sent beyond `allowed` is owed."""
    return replace(bucket, balance=min(bucket.balance + allowed - sent, bucket.bytes_per_second))


def full(bytes_per_second: int, now_ms: int) -> Bucket:
    return Bucket(bytes_per_second, balance=bytes_per_second, at_ms=now_ms)


def owed_ms(bucket: Bucket) -> int:
    """How long it takes until the balance is not below zero."""
    return math.ceil(round(max(0.0, -bucket.balance) * 1000 / bucket.bytes_per_second, 3))
