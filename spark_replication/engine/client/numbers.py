"""The numbers under which a producer's batches are stored once."""

from __future__ import annotations

import operator

import msgspec
from msgspec.structs import force_setattr

from spark_replication.errors import InvalidRequest
from spark_replication.messages.records import KEPT_PRODUCER
from spark_replication.model import EPOCH_MAX


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a producer's batches, in each partition from 0 on. A producer that sends the same batches under
    the same numbers again gets its acknowledgements, and the batches are stored once."""

    #: 62 bits of the program's own; KEPT_PRODUCER may be set besides.
    producer: int
    #: A later epoch fences the earlier ones. 31 bits.
    epoch: int = 0
    #: Whether a retry of a batch may have its rows in another order.
    any_order: bool = False

    def __post_init__(self) -> None:
        number = number_within("producer", self.producer, 2 * KEPT_PRODUCER - 1)
        force_setattr(self, "producer", number)
        force_setattr(self, "epoch", number_within("epoch", self.epoch, EPOCH_MAX))


def number_within(name: str, number: object, largest: int) -> int:
    """An argument as a plain number, from 0 to the largest. Those of NumPy are taken, too."""
    try:
        found = operator.index(number)  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidRequest(f"{name}={number!r} is no whole number") from error
    if not 0 <= found <= largest:
        raise InvalidRequest(f"{name}={number!r}: it is 0 to {largest}")
    return found
