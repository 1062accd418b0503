"""What principals may do, and on what; or may not.

| right          | on a topic, or on all whose names begin alike | on the cluster                                   |
| -------------- | --------------------------------------------- | ------------------------------------------------ |
| describe       | its partitions, leaders, settings, sizes      | metrics, events, these ACLs                      |
| read           | its records; and describe                     |                                                  |
| write          | its records; and describe                     |                                                  |
| alter          | create, change, delete it; and describe       | move and elect partitions; settings; ACLs; alter |
|                |                                               | of each topic; and describe                      |
| cluster_action |                                               | be a broker, or give orders to brokers           |

| right          | on a consumer group, or on all whose names begin alike                                           |
| -------------- | ------------------------------------------------------------------------------------------------ |
| describe       | its members and positions                                                                        |
| read           | be a member, commit, reset and delete its positions; and describe. Of topics, read is needed, too |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from typing import Literal, NamedTuple, get_args

from spark_replication.messages.envelope import Part
from spark_replication.messages.introducing import PrincipalName
from spark_replication.model import require

Right = Literal["describe", "read", "write", "alter", "cluster_action"]
Kind = Literal["topic", "prefix", "cluster", "group", "group_prefix"]
Effect = Literal["allow", "deny"]

DENY: Effect = "deny"
FROM = "from"  # a host or a network follows
EVERYBODY = "*"  # in place of a principal: each that is let in

_TOPIC_RIGHTS: frozenset[Right] = frozenset({"describe", "read", "write", "alter"})
_GROUP_RIGHTS: frozenset[Right] = frozenset({"describe", "read"})
_CLUSTER_RIGHTS: frozenset[Right] = frozenset({"describe", "alter", "cluster_action"})
_RIGHTS: Mapping[Kind, frozenset[Right]] = {
    "topic": _TOPIC_RIGHTS,
    "prefix": _TOPIC_RIGHTS,
    "cluster": _CLUSTER_RIGHTS,
    "group": _GROUP_RIGHTS,
    "group_prefix": _GROUP_RIGHTS,
}
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_GROUP_NAME = re.compile(r"[A-Za-z0-9._:-]{1,249}")
_PRINCIPAL = re.compile(r"[!-:<-~]+")  # visible, without blanks and `;`


def require_principal(name: str) -> None:
    """Raises ValueError."""
    require(
        _PRINCIPAL.fullmatch(name) is not None,
        f"{name!r} is no principal's name: visible ASCII characters, without blanks and `;`",
    )


class Need(NamedTuple):
    """What a request needs."""

    right: Right
    #: None, as is the group, for the cluster.
    topic: str | None = None
    group: str | None = None

    @property
    def what(self) -> str:
        """As an ACL's text has it."""
        if self.group is not None:
            return f"group {self.group}"
        return "cluster" if self.topic is None else f"topic {self.topic}"


class Acl(Part, frozen=True, kw_only=True, order=True):
    """A right of one principal, or that it is denied. Its text is `alice write topic orders`, `bob read prefix
    orders-`, `carol alter cluster`, `deny dave read topic orders` or `erin read topic orders from 10.1.0.0/16`."""

    #: Or EVERYBODY.
    principal: PrincipalName
    right: Right
    kind: Kind
    #: The topic's or the group's, or what the names of such begin with. Empty for the cluster.
    name: str = ""
    #: Who is denied something may not do it, whatever else is said.
    effect: Effect = "allow"
    #: Of a network or a host: it says nothing of who calls from elsewhere. Empty: from anywhere.
    host: str = ""

    def __post_init__(self) -> None:
        require_principal(self.principal)
        rights = _RIGHTS[self.kind]
        require(self.right in rights, f"{self.right} is no right on a {self.kind}: {', '.join(sorted(rights))} are")
        of_groups = self.kind in ("group", "group_prefix")
        named = (_GROUP_NAME if of_groups else _NAME).fullmatch(self.name)
        is_named = self.name == "" if self.kind == "cluster" else named is not None
        more = ", `:`" if of_groups else ""
        require(is_named, f"{self.name!r} names no {self.kind}: letters, digits{more}, `.`, `_` and `-`")
        if self.host:
            ip_network(self.host)

    def __str__(self) -> str:
        denied = DENY if self.effect == DENY else ""
        place = f"{FROM} {self.host}" if self.host else ""
        return " ".join(filter(None, (denied, self.principal, self.right, self.kind, self.name, place)))


def words_of_acl(words: Sequence[str]) -> dict[str, str]:
    """The words of an ACL's text, by the names of its fields. `deny` may be a principal's name, too: it is one where a
    right follows."""
    found: dict[str, str] = {}
    if words[:1] == [DENY] and words[1:2] and words[1] not in get_args(Right):
        found["effect"], words = DENY, words[1:]
    if len(words) > 3 and words[-2] == FROM:
        found["host"], words = words[-1], words[:-2]
    return found | dict(zip(("principal", "right", "kind", "name", "more"), words, strict=False))
