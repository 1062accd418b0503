"""Who may do what at this process, and how much of it: each request, batch and read asks here.

Without security.super.users each client that is let in may do what clients may, and nothing is looked up.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable

from spark_replication.core.law.acls import AclTable
from spark_replication.engine.replica.partition import FindPartition, Partition
from spark_replication.errors import (
    BrokerNotAvailable,
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    InvalidConfig,
    InvalidRequest,
    ReplicationError,
    TopicAuthorizationFailed,
)
from spark_replication.messages.acls import Need, Right
from spark_replication.messages.actions import Sees
from spark_replication.messages.groups import GROUPS_TOPIC
from spark_replication.model import TopicPartition
from spark_replication.transport.proofs.caller import Caller
from spark_replication.transport.security.audit import AuditLog
from spark_replication.transport.security.quotas import Quotas
from spark_replication.transport.security.security import Security

#: Who is taken out of a file is out within this and what a look at files takes (process.files): within 2 s.
LOOK_MS = 500.0
#: Everybody may who names it: who leads the groups' log coordinates a group, and what a group is doing has rights of
#: its own.
FINDS_COORDINATORS = Need("describe", GROUPS_TOPIC)

log = logging.getLogger(__name__)


class Rights:
    """Thread-safe."""

    def __init__(
        self,
        security: Security,
        acls: Callable[[], str] = lambda: "",
        quotas: Callable[[], str] = lambda: "",
        audit: AuditLog | None = None,
    ) -> None:
        """acls, quotas: the text of those in force; acls raises an error where they are not known yet. audit: None for
        the process's own log."""
        self.security = security
        self.audit = audit or AuditLog()
        self._super_users = security.super_users
        self._acls = acls
        self.quotas = Quotas(quotas, are_known=security.knows_clients)
        self._read: tuple[str, AclTable] | None = None

    def sees_all(self, caller: Caller) -> bool:
        return caller.is_of_cluster or not self._super_users or caller.name in self._super_users

    def seen_by(self, caller: Caller, named: Collection[str | None] = ()) -> Sees:
        """Tell which topics it may see. named: those that it has named, and may."""
        if self.sees_all(caller):
            return lambda _topic: True
        return lambda topic: topic in named or self._grants(caller, Need("describe", topic))

    def sees_group(self, caller: Caller) -> Sees:
        return lambda group: self.allow(caller, Need("describe", group=group))

    def allow(self, caller: Caller, need: Need) -> bool:
        return need == FINDS_COORDINATORS or self._grants(caller, need)

    def _grants(self, caller: Caller, need: Need) -> bool:
        if caller.is_of_cluster:
            return True
        if self.sees_all(caller):
            return need.right != "cluster_action"  # whoever has that can lose what was acknowledged: people need it not
        return self._table().allow(caller.name, need, caller.host)

    def require(self, caller: Caller, needs: Iterable[Need]) -> None:
        """Raises TopicAuthorizationFailed or ClusterAuthorizationFailed."""
        for need in needs:
            if not self.allow(caller, need):
                is_denied = need.right != "cluster_action" and self._table().denies(caller.name, need, caller.host)
                raise _refused(caller, need, is_denied=is_denied)

    def require_known(self, caller: Caller) -> None:
        """Raises BrokerNotAvailable if its token was removed since, or its CA. The caller has to
        connect again: by now it may have another."""
        if not self.is_known(caller):
            raise BrokerNotAvailable(
                f"{caller} began with a token, or a certificate, that this cluster does not know any longer: connect "
                "again"
            )

    def is_known(self, caller: Caller) -> bool:
        """Whether what let it in is still there."""
        return all(self.security.is_known(mark) for mark in (caller.mark, caller.ca) if mark)

    def look_ms(self, caller: Caller) -> float:
        """How soon to ask again whether it is known, over a connection on which nothing comes. math.inf: it always
        is."""
        return LOOK_MS if caller.mark or caller.ca else math.inf

    def guarded(self, find: FindPartition, caller: Caller, right: Right) -> FindPartition:
        """Find partitions for this caller, which needs this right on their topics."""
        check = self.check_of(caller, right)

        def found(partition: TopicPartition) -> Partition:
            check(partition.topic)
            return find(partition)

        return found

    def check_of(self, caller: Caller, right: Right) -> Callable[[str], None]:
        """What raises TopicAuthorizationFailed for topics on which this caller lacks the right."""

        def check(topic: str) -> None:
            if topic == GROUPS_TOPIC and right == "write":
                raise InvalidRequest(f"only coordinators write to {topic}: sr.Consumer commits positions")
            try:
                self.require(caller, (Need(right, topic),))
            except ReplicationError as error:
                told = {"who": str(caller), "host": caller.host, "action": right, "asked": topic}
                self.audit.refused(**told, outcome=error.code)
                raise

        return check

    def _table(self) -> AclTable:
        text = self._acls()
        if self._read is None or self._read[0] != text:
            self._read = text, _table_of(text)
        return self._read[1]


def _table_of(text: str) -> AclTable:
    try:
        return AclTable(text)
    except InvalidConfig as error:
        log.error("super users alone may do anything here: %s", error.message)
        return AclTable("")


def _refused(caller: Caller, need: Need, *, is_denied: bool) -> ReplicationError:
    if need.right == "cluster_action":
        return ClusterAuthorizationFailed(
            f"{caller} is no broker, controller or guardian, and only they may ask for this: they have "
            "security.broker.token.file"
        )
    what = need.what
    mend = (
        "it is denied. `spark-replication acls list` shows by what, and `acls remove --deny` ends that"
        if is_denied
        else "whoever may alter the cluster grants it by "
        f"`spark-replication acls add {caller.name or 'NAME'} {need.right} {what}`"
    )
    message = f"{caller} may not {need.right} {'the ' if what == 'cluster' else ''}{what}: {mend}"
    if need.group is not None:
        return GroupAuthorizationFailed(message)
    return ClusterAuthorizationFailed(message) if need.topic is None else TopicAuthorizationFailed(message)
