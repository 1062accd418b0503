"""ACLs on the page: who may do what, told to whoever may see it, and nothing that changes it."""

from __future__ import annotations

import pytest

from spark_replication.errors import ClusterAuthorizationFailed
from spark_replication.messages.acls import Acl
from spark_replication.messages.requests import ToldAcls
from spark_replication.page import recent_events
from tests.unit.page.page_cluster import GONE, PageCluster
from tests.unit.page.viewer import Viewer

TOLD = ToldAcls(
    acls=(
        Acl(principal="alice", right="write", kind="topic", name="orders"),
        Acl(principal="*", right="read", kind="prefix", name="public-", effect="deny", host="10.0.0.0/8"),
    ),
    super_users=("root",),
)
REFUSED = ClusterAuthorizationFailed("carol has no right to describe the cluster: ask a super user for it")


def test_super_users_and_acls_are_shown(viewer: Viewer, cluster: PageCluster) -> None:
    cluster.told_acls = TOLD
    found = viewer.ask("/api/acls").json
    assert found["acls"] == [
        ["alice", "allow", "write", "topic", "orders", ""],
        ["*", "deny", "read", "prefix", "public-", "10.0.0.0/8"],
    ]
    assert (found["super_users"], found["age"]["error"]) == (["root"], "")


def test_whoever_may_not_see_them_is_told_why(viewer: Viewer, cluster: PageCluster) -> None:
    cluster.told_acls = REFUSED
    found = viewer.ask("/api/acls").json
    assert (found["acls"], found["super_users"], found["age"]["error"]) == ([], [], str(REFUSED))


@pytest.mark.parametrize("why", [REFUSED, GONE])
def test_what_was_told_once_is_not_shown_to_whoever_may_see_it_no_longer(
    viewer: Viewer, cluster: PageCluster, monkeypatch: pytest.MonkeyPatch, why: ClusterAuthorizationFailed
) -> None:
    monkeypatch.setattr(recent_events, "FRESH_S", 0.0)
    cluster.told_acls = TOLD
    assert viewer.ask("/api/acls").json["acls"]
    cluster.told_acls = why
    found = viewer.eventually("/api/acls", lambda found: found["age"]["error"])
    assert (found["acls"], found["super_users"], found["age"]["error"]) == ([], [], str(why))


def test_nothing_on_the_page_changes_an_acl(viewer: Viewer) -> None:
    assert viewer.ask("/api/acls", method="POST").status == 405


def test_whoever_may_not_see_the_page_sees_no_acl(stranger: Viewer, cluster: PageCluster) -> None:
    cluster.told_acls = TOLD
    answer = stranger.ask("/api/acls")
    assert (answer.status, b"alice" in answer.body) == (401, False)
