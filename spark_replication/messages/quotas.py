"""How much a principal may take of a broker or a controller.

| quota              | counts                                                                                      |
| ------------------ | ------------------------------------------------------------------------------------------- |
| producer_byte_rate | bytes a second of batches that it sends                                                     |
| consumer_byte_rate | bytes a second of records that it is sent                                                   |
| request_rate       | requests a second: actions, batches, questions for records, streams that it opens           |
| connections        | connections of Flight over which it has called, that are open at a time                     |
| streams            | producers, readers and streams that are open at a time                                      |
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from spark_replication.messages.acls import require_principal
from spark_replication.messages.envelope import Part
from spark_replication.messages.introducing import PrincipalName

Rate = Literal["producer_byte_rate", "consumer_byte_rate", "request_rate"]
QuotaKind = Literal["producer_byte_rate", "consumer_byte_rate", "request_rate", "connections", "streams"]
Limit = Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]


class Quota(Part, frozen=True, kw_only=True, order=True):
    """A limit of one principal. Its text is `alice producer_byte_rate 1048576`, or `* streams 100`."""

    #: Or EVERYBODY: each principal that has none of its own.
    principal: PrincipalName
    kind: QuotaKind
    limit: Limit

    def __post_init__(self) -> None:
        require_principal(self.principal)

    def __str__(self) -> str:
        return f"{self.principal} {self.kind} {self.limit}"
