"""Who may do what: the ACLs of a cluster, which are one of its settings (security.acls), and how they are looked up.

Rules:
- What is not granted is refused. Nothing is denied by name: a principal has what it and everybody were granted.
- read, write and alter of a topic let it be described. alter of the cluster is alter and describe of each topic, since
  whoever has it may grant that to itself, and describe of the cluster. It is neither read nor write.
- cluster_action stands alone.
"""

from __future__ import annotations

from spark_replication.core.law.worded import Worded
from spark_replication.messages.acls import EVERYBODY, Acl, Need, Right

SETTING = "security.acls"
ANSWERS_KEPT_MAX = 10_000

ACLS = Worded(
    SETTING,
    Acl,
    one="ACL",
    examples="`alice write topic orders`, `bob read prefix orders-` or `carol alter cluster`",
    instead=f"grant to prefixes, or to {EVERYBODY}",
)

_LET_DESCRIBE: frozenset[Right] = frozenset({"describe", "read", "write", "alter"})
_OF_CLUSTER_ALTER: frozenset[Right] = frozenset({"describe", "alter"})


class AclTable:
    """The ACLs of a cluster, looked up. Thread-safe."""

    def __init__(self, text: str) -> None:
        """Raises InvalidConfig."""
        self._topics: set[tuple[str, Right, str]] = set()
        self._prefixes: dict[tuple[str, Right], list[str]] = {}
        self._cluster: set[tuple[str, Right]] = set()
        for acl in ACLS.said(text):
            match acl.kind:
                case "topic":
                    self._topics.add((acl.principal, acl.right, acl.name))
                case "prefix":
                    self._prefixes.setdefault((acl.principal, acl.right), []).append(acl.name)
                case "cluster":
                    self._cluster.add((acl.principal, acl.right))
        self._answers: dict[tuple[str, Need], bool] = {}

    def allow(self, principal: str, need: Need) -> bool:
        known = self._answers.get((principal, need))
        if known is None:
            known = any(self._allow(each, need) for each in (principal, EVERYBODY))
            if len(self._answers) >= ANSWERS_KEPT_MAX:
                self._answers = {}
            self._answers[principal, need] = known
        return known

    def _allow(self, principal: str, need: Need) -> bool:
        right, topic = need
        if right in _OF_CLUSTER_ALTER and (principal, "alter") in self._cluster:
            return True
        if topic is None:
            return (principal, right) in self._cluster
        rights = _LET_DESCRIBE if right == "describe" else (right,)
        return any(
            (principal, each, topic) in self._topics
            or any(topic.startswith(prefix) for prefix in self._prefixes.get((principal, each), ()))
            for each in rights
        )
