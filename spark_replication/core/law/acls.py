"""Who may do what: the ACLs of a cluster, which are one of its settings (security.acls), and how they are looked up.

Rules:
- What is not granted is refused. A principal has what it and everybody were granted.
- What is denied to it, or to everybody, is refused, whatever is granted.
- read, write and alter of a topic that are granted let it be described, also where they are denied, as in Kafka. So
  does read of a group.
- alter of the cluster is alter and describe of each topic, since whoever has it may grant that to itself, and describe
  of the cluster and of each group. It is neither read nor write. Where it is denied, it is none of these.
- cluster_action stands alone.
- What is said of a host or a network counts for who calls from there. Of whom nobody knows from where, what is denied
  counts, and what is granted does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from spark_replication.core.law.worded import Worded
from spark_replication.messages.acls import DENY, EVERYBODY, Acl, Need, Right, words_of_acl

SETTING = "security.acls"
ANSWERS_KEPT_MAX = 10_000
MAPPED_BITS = 96  # of an IPv6 address, before the IPv4 address that is mapped into it

ACLS = Worded(
    SETTING,
    Acl,
    one="ACL",
    examples="`alice write topic orders`, `bob read prefix orders-`, `carol alter cluster` or `deny dave read topic "
    "orders from 10.1.0.0/16`",
    instead=f"grant to prefixes, or to {EVERYBODY}",
    words=words_of_acl,
)

_LET_DESCRIBE: frozenset[Right] = frozenset({"describe", "read", "write", "alter"})
_OF_CLUSTER_ALTER: frozenset[Right] = frozenset({"describe", "alter"})

Address = IPv4Address | IPv6Address
#: None: everywhere.
Place = IPv4Network | IPv6Network | None


class _Said:
    """What is granted, or what is denied."""

    def __init__(self, acls: Iterable[Acl], *, of_unknown: bool) -> None:
        """of_unknown: whether what is said of a place counts for a caller of whom nobody knows where it is."""
        self._of_unknown = of_unknown
        self._named: dict[tuple[str, Need], list[Place]] = {}
        #: By principal, right, and whether it is of groups.
        self._prefixes: dict[tuple[str, Right, bool], list[tuple[str, Place]]] = {}
        for acl in acls:
            place = _network(acl.host) if acl.host else None
            match acl.kind:
                case "prefix" | "group_prefix":
                    of_groups = acl.kind == "group_prefix"
                    self._prefixes.setdefault((acl.principal, acl.right, of_groups), []).append((acl.name, place))
                case "group":
                    self._named.setdefault((acl.principal, Need(acl.right, group=acl.name)), []).append(place)
                case "topic" | "cluster":
                    self._named.setdefault((acl.principal, Need(acl.right, acl.name or None)), []).append(place)

    def has(self, principal: str, need: Need, address: Address | None) -> bool:
        of_groups, name = need.group is not None, need.group or need.topic
        return any(
            self._counts(place, address)
            for each in (principal, EVERYBODY)
            for place in (
                *self._named.get((each, need), ()),
                *(
                    at
                    for prefix, at in self._prefixes.get((each, need.right, of_groups), ())
                    if name and name.startswith(prefix)
                ),
            )
        )

    def _counts(self, place: Place, address: Address | None) -> bool:
        if place is None:
            return True
        return self._of_unknown if address is None else address in place


class AclTable:
    """The ACLs of a cluster, looked up. Thread-safe."""

    def __init__(self, text: str) -> None:
        """Raises InvalidConfig."""
        said = ACLS.said(text)
        self._granted = _Said((acl for acl in said if acl.effect != DENY), of_unknown=False)
        self._denied = _Said((acl for acl in said if acl.effect == DENY), of_unknown=True)
        self._knows_places = any(acl.host for acl in said)
        self._answers: dict[tuple[str, Need, str], bool] = {}

    def allow(self, principal: str, need: Need, host: str = "") -> bool:
        """host: where the principal calls from; empty if nobody knows."""
        asked = principal, need, host if self._knows_places else ""
        known = self._answers.get(asked)
        if known is None:
            known = self._allow(principal, need, _address(asked[2]))
            if len(self._answers) >= ANSWERS_KEPT_MAX:
                self._answers = {}
            self._answers[asked] = known
        return known

    def denies(self, principal: str, need: Need, host: str = "") -> bool:
        """Whether just this is denied: no grant would help."""
        return self._denied.has(principal, need, _address(host))

    def _allow(self, principal: str, need: Need, address: Address | None) -> bool:
        if self._denied.has(principal, need, address):
            return False
        alter = Need("alter")
        alters = self._granted.has(principal, alter, address)
        if need.right in _OF_CLUSTER_ALTER and alters and not self._denied.has(principal, alter, address):
            return True
        is_of_one = need.topic is not None or need.group is not None
        rights = _LET_DESCRIBE if need.right == "describe" and is_of_one else (need.right,)
        return any(self._granted.has(principal, need._replace(right=each), address) for each in rights)


def _address(host: str) -> Address | None:
    try:
        return _plain(ip_address(host))
    except ValueError:
        return None


def _network(text: str) -> IPv4Network | IPv6Network:
    found = ip_network(text)
    first = _plain(found.network_address)
    is_mapped = first is not found.network_address and found.prefixlen >= MAPPED_BITS
    return IPv4Network((str(first), found.prefixlen - MAPPED_BITS)) if is_mapped else found


def _plain(address: Address) -> Address:
    """A socket of both families shows `::ffff:10.0.0.1` where 10.0.0.1 calls, and people copy that."""
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address
