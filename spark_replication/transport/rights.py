"""Who may do what at this process, and how much of it: each request, batch and read asks here.

Without security.super.users each client that is let in may do what clients may, and nothing is looked up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from spark_replication.core.law.acls import AclTable
from spark_replication.engine.partition import FindPartition, Partition
from spark_replication.errors import (
    BrokerNotAvailable,
    ClusterAuthorizationFailed,
    InvalidConfig,
    ReplicationError,
    TopicAuthorizationFailed,
)
from spark_replication.messages.acls import Need, Right
from spark_replication.model import TopicPartition
from spark_replication.transport.caller import Caller
from spark_replication.transport.quotas import Quotas
from spark_replication.transport.security import Security

log = logging.getLogger(__name__)


class Rights:
    """Thread-safe."""

    def __init__(
        self, security: Security, acls: Callable[[], str] = lambda: "", quotas: Callable[[], str] = lambda: ""
    ) -> None:
        """acls, quotas: the text of those in force; acls raises an error where they are not known yet."""
        self.security = security
        self._super_users = security.super_users
        self._acls = acls
        self.quotas = Quotas(quotas, are_known=security.knows_clients)
        self._read: tuple[str, AclTable] | None = None

    def sees_all(self, caller: Caller) -> bool:
        return caller.is_of_cluster or not self._super_users or caller.name in self._super_users

    def allow(self, caller: Caller, need: Need) -> bool:
        if caller.is_of_cluster:
            return True
        if self.sees_all(caller):
            return need.right != "cluster_action"  # whoever has that can lose what was acknowledged: people need it not
        return self._table().allow(caller.name, need)

    def require(self, caller: Caller, needs: Iterable[Need]) -> None:
        """Raises TopicAuthorizationFailed or ClusterAuthorizationFailed."""
        for need in needs:
            if not self.allow(caller, need):
                raise _refused(caller, need)

    def require_known(self, caller: Caller) -> None:
        """Raises BrokerNotAvailable if its token was removed since. It may have another by now, so it is to connect
        again."""
        if caller.mark and not self.security.is_known(caller.mark):
            raise BrokerNotAvailable(
                f"{caller} began with a token that is none of this cluster any longer: connect again"
            )

    def guarded(self, find: FindPartition, caller: Caller, right: Right) -> FindPartition:
        """Finds partitions for this caller, which needs this right on their topics."""
        check = self.check_of(caller, right)

        def found(partition: TopicPartition) -> Partition:
            check(partition.topic)
            return find(partition)

        return found

    def check_of(self, caller: Caller, right: Right) -> Callable[[str], None]:
        """What raises TopicAuthorizationFailed for topics on which this caller lacks the right. The first refusal is
        logged: a stream may have many."""
        is_told = False

        def check(topic: str) -> None:
            nonlocal is_told
            try:
                self.require(caller, (Need(right, topic),))
            except ReplicationError as error:
                if not is_told:
                    is_told = True
                    log.warning(
                        "%s", error, extra={"who": str(caller), "host": caller.host, "action": right, "asked": topic}
                    )
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


def _refused(caller: Caller, need: Need) -> ClusterAuthorizationFailed | TopicAuthorizationFailed:
    if need.right == "cluster_action":
        return ClusterAuthorizationFailed(
            f"{caller} is no broker, controller or guardian, and only they may ask for this: they have "
            "security.broker.token.file"
        )
    what = "cluster" if need.topic is None else f"topic {need.topic}"
    message = (
        f"{caller} may not {need.right} {'the ' if need.topic is None else ''}{what}: whoever may alter the cluster "
        f"grants it by `spark-replication acls add {caller.name or 'NAME'} {need.right} {what}`"
    )
    return ClusterAuthorizationFailed(message) if need.topic is None else TopicAuthorizationFailed(message)
