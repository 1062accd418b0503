"""Quotas as text, and whose holds."""

from __future__ import annotations

import pytest

from spark_replication.core.law.quotas import QUOTAS, QuotaTable, with_quota
from spark_replication.errors import InvalidConfig
from spark_replication.messages.quotas import Quota

TEXT = "* streams 20; alice producer_byte_rate 1048576; alice streams 5"


def test_quotas_are_read_and_written_as_people_write_them() -> None:
    read = QUOTAS.said(f" alice   streams 5;; {TEXT} ;")
    assert read == {
        Quota(principal="*", kind="streams", limit=20),
        Quota(principal="alice", kind="producer_byte_rate", limit=1 << 20),
        Quota(principal="alice", kind="streams", limit=5),
    }
    assert QUOTAS.text(read) == TEXT
    assert QUOTAS.said(" ; ") == frozenset()


def test_a_principals_own_quota_holds_and_then_that_for_everybody() -> None:
    table = QuotaTable(f"{TEXT}; bob streams 500")
    assert [table.limit(who, "streams") for who in ("alice", "bob", "carol")] == [5, 500, 20]
    assert [table.limit(who, "producer_byte_rate") for who in ("alice", "bob")] == [1 << 20, None]
    assert table.limit("alice", "request_rate") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("alice", "missing required field `kind`"),
        ("alice streams", "missing required field `limit`"),
        ("alice stream 5", "Invalid enum value 'stream'"),
        ("alice streams five", "Expected `int`, got `str`"),
        ("alice streams 0", ">= 1"),
        ("alice streams -1", ">= 1"),
        ("alice streams 1.5", "Expected `int`"),
        (f"alice streams {1 << 53}", "<= 9007199254740991"),
        ("alice streams 5 6", "unknown field `more`"),
        (f"{'a' * 256} streams 1", "length <= 255"),
        ("älice streams 1", "is no principal's name"),
    ],
)
def test_what_is_no_quota_is_one_clear_sentence(text: str, why: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        QuotaTable(f"{TEXT}; {text}")
    assert refused.value.message.startswith(repr(text[:300]))
    assert why in refused.value.message


def test_two_limits_of_one_thing_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="says two limits of alice streams: leave one"):
        QuotaTable(f"{TEXT}; alice streams 6")


def test_one_is_set_and_taken_back() -> None:
    assert with_quota("", "alice", "streams", 5) == "alice streams 5"
    assert with_quota(TEXT, "alice", "streams", 6) == TEXT.replace("alice streams 5", "alice streams 6")
    assert with_quota(TEXT, "alice", "streams", None) == TEXT.removesuffix("; alice streams 5")
    assert with_quota(TEXT, "carol", "streams", None) == TEXT
    assert with_quota(f"{TEXT}; alice streams 6", "alice", "streams", 7) == TEXT.replace("streams 5", "streams 7")
    for no_name in ("of alice", "alice;", "", "*;"):
        with pytest.raises(InvalidConfig, match="is no quota"):
            with_quota(TEXT, no_name, "streams", 5)
