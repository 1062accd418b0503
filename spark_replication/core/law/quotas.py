"""How much each principal may take of each process: the quotas of a cluster, which are one of its settings
(security.quotas), and how they are looked up.

Rules:
- A principal's own quota counts, whether it is higher or lower than the one for everybody. Without either there is no
  limit.
- A quota is each principal's alone, also the one for everybody.
- It holds at each broker and at the controller by itself.
"""

from __future__ import annotations

from spark_replication.core.law.worded import Worded
from spark_replication.errors import InvalidConfig
from spark_replication.messages.acls import EVERYBODY
from spark_replication.messages.quotas import Quota, QuotaKind

SETTING = "security.quotas"

QUOTAS = Worded(
    SETTING,
    Quota,
    one="quota",
    examples="`alice producer_byte_rate 1048576`, `* request_rate 1000` or `bob streams 20`",
    instead=f"set one for {EVERYBODY}",
)


class QuotaTable:
    """The quotas of a cluster, looked up. Thread-safe."""

    def __init__(self, text: str) -> None:
        """Raises InvalidConfig."""
        self._limits: dict[tuple[str, QuotaKind], int] = {}
        for quota in QUOTAS.said(text):
            of = quota.principal, quota.kind
            if of in self._limits:
                raise InvalidConfig(f"{SETTING} says two limits of {' '.join(of)}: leave one")
            self._limits[of] = quota.limit

    def limit(self, principal: str, kind: QuotaKind) -> int | None:
        own = self._limits.get((principal, kind))
        return self._limits.get((EVERYBODY, kind)) if own is None else own


def with_quota(text: str, principal: str, kind: QuotaKind, limit: int | None) -> str:
    """The text with another limit; None: without that. Raises InvalidConfig."""
    others = [quota for quota in QUOTAS.said(text) if (quota.principal, quota.kind) != (principal, kind)]
    given = () if limit is None else QUOTAS.each([f"{principal} {kind} {limit}"])
    return QUOTAS.text([*others, *given])
