"""ACLs as text, and what they let a principal do."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.core.law import acls, worded
from spark_replication.core.law.acls import ACLS, AclTable
from spark_replication.errors import InvalidConfig
from spark_replication.messages.acls import EVERYBODY, Acl, Kind, Need, Right

TEXT = "* read prefix public-; alice write topic orders; carol alter cluster"


def test_acls_are_read_and_written_as_people_write_them() -> None:
    read = ACLS.said(f"  carol alter cluster ;; {TEXT};")
    assert read == {
        Acl(principal="alice", right="write", kind="topic", name="orders"),
        Acl(principal="*", right="read", kind="prefix", name="public-"),
        Acl(principal="carol", right="alter", kind="cluster"),
    }
    assert ACLS.text(read) == TEXT
    assert ACLS.said(ACLS.text(read)) == read
    assert ACLS.said("") == ACLS.said(" ; ") == frozenset()
    assert ACLS.each(["carol alter cluster"]) == (Acl(principal="carol", right="alter", kind="cluster"),)


@pytest.mark.parametrize(
    ("text", "acl"),
    [
        ("deny bob read topic orders", Acl(principal="bob", right="read", kind="topic", name="orders", effect="deny")),
        ("deny * alter cluster", Acl(principal="*", right="alter", kind="cluster", effect="deny")),
        ("bob alter cluster from ::1", Acl(principal="bob", right="alter", kind="cluster", host="::1")),
        (
            "deny bob read prefix or from 10.0.0.0/8",
            Acl(principal="bob", right="read", kind="prefix", name="or", effect="deny", host="10.0.0.0/8"),
        ),
        # These words may be names, too.
        ("deny read topic orders", Acl(principal="deny", right="read", kind="topic", name="orders")),
        ("deny deny alter cluster", Acl(principal="deny", right="alter", kind="cluster", effect="deny")),
        ("from read topic from", Acl(principal="from", right="read", kind="topic", name="from")),
        (
            "from read topic from from 10.0.0.1",
            Acl(principal="from", right="read", kind="topic", name="from", host="10.0.0.1"),
        ),
    ],
)
def test_an_acl_may_deny_and_may_be_of_a_place(text: str, acl: Acl) -> None:
    assert ACLS.each([text]) == (acl,)
    assert str(acl) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("deny", "missing required field `right`"),
        ("deny alice", "missing required field `right`"),
        ("alice read topic orders from", "unknown field `more`"),
        ("alice read topic orders from here", "'here' does not appear to be an IPv4 or IPv6 network"),
        ("alice read topic orders from 10.0.0.1/8", "has host bits set"),
        ("alice from 10.0.0.1", "Invalid enum value 'from'"),
        ("alice", "missing required field `right`"),
        ("alice write", "missing required field `kind`"),
        ("alice write topic", "'' names no topic"),
        ("alice write topic a b", "unknown field `more`"),
        ("alice write topic a b c", "unknown field `more`"),
        ("alice writes topic orders", "Invalid enum value 'writes'"),
        ("alice write topics orders", "Invalid enum value 'topics'"),
        ("alice write topic orders/", "names no topic"),
        ("alice write prefix *", "names no prefix"),
        ("alice write cluster", "write is no right on a cluster: alter, cluster_action, describe are"),
        ("alice cluster_action topic orders", "cluster_action is no right on a topic"),
        ("alice alter cluster c", "'c' names no cluster"),
        (f"{'a' * 256} alter cluster", "length <= 255"),
        ("älice alter cluster", "is no principal's name"),
    ],
)
def test_what_is_no_acl_is_one_clear_sentence(text: str, why: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        ACLS.said(f"{TEXT}; {text}")
    assert refused.value.message.startswith(repr(text[:300]))
    assert why in refused.value.message


def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worded, "CHARACTERS_MAX", len(TEXT))
    assert ACLS.text(ACLS.said(TEXT)) == TEXT
    with pytest.raises(InvalidConfig, match=r"characters, 68 at most: grant to prefixes, or to \*"):
        ACLS.said(f"{TEXT};")


def test_answers_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "ANSWERS_KEPT_MAX", 3)
    table = AclTable(TEXT)
    for number in range(10):
        assert not table.allow(f"p{number}", Need("write", "orders"))
        assert len(table._answers) <= 3
    assert table.allow("alice", Need("write", "orders"))


def test_answers_of_many_places_are_kept_apart() -> None:
    table = AclTable("alice write topic orders from 10.0.0.0/8; deny alice write topic orders from 10.9.9.9")
    hosts = ["10.0.0.1", "10.9.9.9", "11.0.0.1", "::ffff:10.0.0.1", "", "no address"]
    for _ in range(2):
        asked = [table.allow("alice", Need("write", "orders"), host) for host in hosts]
        assert asked == [True, False, False, True, False, False]
    assert not AclTable("alice write topic orders; deny alice write topic orders from 10.9.9.9").allow(
        "alice", Need("write", "orders")
    ), "nobody knows where she is"


@pytest.mark.parametrize("place", ["::ffff:10.0.0.1", "::ffff:10.0.0.0/104", "10.0.0.1"])
def test_an_address_that_is_mapped_into_ipv6_is_the_same_address(place: str) -> None:
    """Else what is denied to it would be denied to nobody."""
    table = AclTable(f"alice write topic orders; deny alice write topic orders from {place}")
    for host in ("10.0.0.1", "::ffff:10.0.0.1"):
        assert not table.allow("alice", Need("write", "orders"), host)
    assert table.allow("alice", Need("write", "orders"), "11.0.0.1")


def test_what_is_denied_is_told_from_what_is_not_granted() -> None:
    table = AclTable("bob write topic orders; deny bob write prefix ord from 10.0.0.1; deny * alter cluster")
    assert table.denies("bob", Need("write", "orders"), "10.0.0.1")
    assert not table.denies("bob", Need("write", "orders"), "10.0.0.2")
    assert not table.denies("bob", Need("describe", "orders"), "10.0.0.1")
    assert table.denies("carol", Need("alter"))


def test_a_group_is_no_topic_of_its_name() -> None:
    table = AclTable("alice read group etl; bob read group_prefix et; carol read topic etl; carol read prefix et")
    group = Need("read", group="etl")
    assert [table.allow(who, group) for who in ("alice", "bob", "carol")] == [True, True, False]
    assert [table.allow(who, Need("read", "etl")) for who in ("alice", "bob", "carol")] == [False, False, True]
    assert not table.allow("bob", Need("read", group="e"))
    assert table.allow("alice", Need("describe", group="etl"))


def test_nobody_writes_to_a_group() -> None:
    with pytest.raises(InvalidConfig, match="write is no right on a group: describe, read are"):
        AclTable("alice write group etl")


NAMES = st.sampled_from(["a", "ab", "abc", "b"])
WHO = st.sampled_from(["alice", "bob", EVERYBODY])
PLACES: dict[str, Callable[[str], bool]] = {
    "": lambda _: True,
    "10.0.0.1": lambda host: host == "10.0.0.1",
    "10.0.0.0/8": lambda host: host.startswith("10."),
}


@st.composite
def any_acl(draw: st.DrawFn) -> Acl:
    kind: Kind = draw(st.sampled_from(get_args(Kind)))
    rights = {
        "cluster": ["describe", "alter", "cluster_action"],
        "group": ["describe", "read"],
        "group_prefix": ["describe", "read"],
    }.get(kind, ["describe", "read", "write", "alter"])
    return Acl(
        principal=draw(WHO),
        right=draw(st.sampled_from(rights)),
        kind=kind,
        name="" if kind == "cluster" else draw(NAMES),
        effect=draw(st.sampled_from(["allow", "allow", "deny"])),
        host=draw(st.sampled_from(["", "", *PLACES])),
    )


def is_said(given: list[Acl], effect: str, principal: str, need: Need, host: str) -> bool:
    """Whether one of these ACLs says just this, without what follows from it."""
    _, topic, group = need
    return any(
        each.effect == effect
        and each.principal in (principal, EVERYBODY)
        and each.right == need.right
        and PLACES[each.host](host)
        and {
            "topic": topic == each.name,
            "prefix": topic is not None and topic.startswith(each.name),
            "cluster": topic is None and group is None,
            "group": group == each.name,
            "group_prefix": group is not None and group.startswith(each.name),
        }[each.kind]
        for each in given
    )


def is_allowed(given: list[Acl], principal: str, need: Need, host: str) -> bool:
    """The rules, one after the other."""

    def granted(one: Need) -> bool:
        return is_said(given, "allow", principal, one, host)

    def denied(one: Need) -> bool:
        return is_said(given, "deny", principal, one, host)

    ways = [granted(need)]
    if need.right == "describe" and need != Need("describe"):
        others: tuple[Right, ...] = ("read", "write", "alter")
        ways += [granted(need._replace(right=other)) for other in others]
    if need.right in ("describe", "alter"):
        ways.append(granted(Need("alter")) and not denied(Need("alter")))
    return any(ways) and not denied(need)


@given(
    st.lists(any_acl(), max_size=6),
    st.sampled_from(["alice", "bob", "carol"]),
    st.sampled_from(["10.0.0.1", "10.2.3.4", "192.168.0.1", "::1"]),
)
def test_a_principal_may_do_what_was_granted_and_not_denied_and_nothing_else(
    given: list[Acl], principal: str, host: str
) -> None:
    table = AclTable(ACLS.text(given))
    names = ("a", "ab", "abc", "b")
    for right in get_args(Right):
        needs = [Need(right), *(Need(right, name) for name in names), *(Need(right, group=name) for name in names)]
        for need in needs:
            expected = is_allowed(given, principal, need, host)
            assert table.allow(principal, need, host) is expected, need
            assert table.allow(principal, need, host) is expected, "a second time"
