"""ACLs as text, and what they let a principal do."""

from __future__ import annotations

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
    ("text", "why"),
    [
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


NAMES = st.sampled_from(["a", "ab", "abc", "b"])
WHO = st.sampled_from(["alice", "bob", EVERYBODY])


@st.composite
def any_acl(draw: st.DrawFn) -> Acl:
    kind: Kind = draw(st.sampled_from(get_args(Kind)))
    rights = ["describe", "alter", "cluster_action"] if kind == "cluster" else ["describe", "read", "write", "alter"]
    name = "" if kind == "cluster" else draw(NAMES)
    return Acl(principal=draw(WHO), right=draw(st.sampled_from(rights)), kind=kind, name=name)


def is_allowed(given: list[Acl], principal: str, right: Right, topic: str | None) -> bool:
    """The rules, one acl after the other."""
    for each in given:
        if each.principal not in (principal, EVERYBODY):
            continue
        rights = {each.right}
        if each.right in ("read", "write", "alter"):
            rights |= {"describe"}
        if each.kind == "cluster" and right in rights and (topic is None or each.right == "alter"):
            return True
        is_about = {"topic": topic == each.name, "prefix": (topic or "").startswith(each.name), "cluster": False}
        if topic is not None and right in rights and is_about[each.kind]:
            return True
    return False


@given(st.lists(any_acl(), max_size=6), st.sampled_from(["alice", "bob", "carol"]))
def test_a_principal_may_do_what_was_granted_and_nothing_else(given: list[Acl], principal: str) -> None:
    table = AclTable(ACLS.text(given))
    for right in get_args(Right):
        for topic in (None, "a", "ab", "abc", "b"):
            expected = is_allowed(given, principal, right, topic)
            assert table.allow(principal, Need(right, topic)) is expected, (right, topic)
            assert table.allow(principal, Need(right, topic)) is expected, "a second time"
