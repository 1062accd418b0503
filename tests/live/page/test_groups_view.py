"""Consumer groups in a browser: two members of a group, one of which is behind, and what a page may not see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.page.server import PageServer
from tests.live.page.chromium import Tab
from tests.live.page.conftest import photograph, says, show
from tests.unit.page.viewer import Viewer, nobody_hears
from tests.unit.transport.test_security import token_settings
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

SCHEMA = pa.schema([("id", pa.int64())])
PARTITIONS = 4
RECORDS = 1_500
ONE_BROKER = {"default.replication.factor": 1}


def write(cluster: sr.LocalCluster, topic: str, partitions: int) -> None:
    batch = pa.record_batch([pa.array(range(RECORDS))], schema=SCHEMA)
    with sr.Producer(cluster.bootstrap, security=cluster.security) as producer:
        for future in [producer.send(topic, batch, partition=number) for number in range(partitions)]:
            future.result()


def read(consumer: sr.Consumer, records: int) -> None:
    while records > 0:
        found = consumer.poll(30.0)
        assert found is not None
        records -= found.batch.num_rows
    consumer.commit()


@pytest.fixture(scope="module")
def cluster() -> Iterator[sr.LocalCluster]:
    """Of the group etl, `quick` has read all of its partitions, and `slow` nothing."""
    with sr.LocalCluster.start(brokers=1, config=ONE_BROKER) as cluster:
        for topic, partitions in (("orders", PARTITIONS), ("audit", 1)):
            cluster.admin.create_topic(topic, SCHEMA, partitions=partitions, replication_factor=1)
        write(cluster, "orders", PARTITIONS)
        write(cluster, "audit", 1)
        with (
            sr.Consumer(cluster.bootstrap, ["orders"], group="etl", name="quick") as quick,
            sr.Consumer(cluster.bootstrap, ["orders"], group="etl", name="slow") as slow,
        ):
            eventually(lambda: {len(quick.assignment), len(slow.assignment)} == {PARTITIONS // 2}, "they share")
            read(quick, RECORDS * PARTITIONS // 2)
            with sr.Consumer(cluster.bootstrap, ["audit"], group="audit") as done:
                read(done, RECORDS)
            yield cluster


@pytest.fixture
def page(cluster: sr.LocalCluster) -> str:
    cluster.wait_healthy()
    assert cluster.page is not None
    return cluster.page


def cells(tab: Tab, caption: str) -> list[list[str]]:
    """The rows of the table with this caption."""
    found = f"[...document.querySelectorAll('table')].find((each) => each.caption.textContent === '{caption}')"
    rows: list[list[str]] = tab.ask(
        f"[...({found})?.tBodies[0].rows ?? []].map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return rows


def test_groups_are_listed_with_what_each_is_behind(page: str, tab: Tab, pictures: Path) -> None:
    photograph(tab, f"{page}#/groups", pictures, "groups", "2 groups")
    etl, audit = cells(tab, "2 groups")
    assert etl[:5] == ["etl", "stable", "2", "4", "3,000"]
    assert audit[:5] == ["audit", "empty", "0", "1", "0"]
    assert etl[5].endswith(" ago")
    search = "document.querySelector('input[type=search]')"
    tab.ask(f"{search}.value = 'aud'; {search}.dispatchEvent(new Event('input'))")
    assert [each[0] for each in cells(tab, "1 group")] == ["audit"]
    tab.ask("document.querySelector('td a').click()")
    says(tab, "Group audit")


def test_a_group_has_members_and_positions(page: str, tab: Tab, pictures: Path) -> None:
    photograph(tab, f"{page}#/groups/etl", pictures, "group", "each partition has its member")
    quick, slow = cells(tab, "2 members")
    assert [(each[0], each[2], each[3]) for each in (quick, slow)] == [("quick", "2", "0"), ("slow", "2", "0")]
    assert quick[4].endswith(" s ago")
    rows = cells(tab, "4 partitions")
    assert [each[1:5] for each in rows] == [
        ["slow", "–", "1,500", "1,500"],
        ["slow", "–", "1,500", "1,500"],
        ["quick", "1,500", "1,500", "0"],
        ["quick", "1,500", "1,500", "0"],
    ]
    assert [each[5] for each in rows[:2]] == ["never", "never"]
    links = "[...document.querySelectorAll('tbody a')].map((each) => each.getAttribute('href'))"
    number = rows[0][0].removeprefix("orders ")
    assert tab.ask(links)[:2] == ["#/topics/orders", f"#/topics/orders/{number}"]


def test_a_topic_has_the_groups_that_read_it(page: str, tab: Tab, pictures: Path) -> None:
    photograph(tab, f"{page}#/topics/orders", pictures, "topic-groups", "Groups that read it")
    tab.wait(lambda: [each[0] for each in cells(tab, "1 group")] == ["etl"], "the group that reads it")


def test_acls_of_groups_are_said_to_be_of_groups(cluster: sr.LocalCluster, page: str, tab: Tab) -> None:
    cluster.admin.add_acls("carol describe group etl", "carol read group_prefix au")
    show(tab, f"{page}#/acls", "2 ACLs")
    assert [each[2] for each in cells(tab, "2 ACLs")] == ["group etl", "groups named au…"]


def test_what_coordinators_cannot_tell_is_said_and_what_they_told_stays(
    cluster: sr.LocalCluster, page: str, tab: Tab, pictures: Path
) -> None:
    show(tab, f"{page}#/groups", "2 groups")
    cluster.kill_broker(1)
    try:
        says(tab, "Groups cannot be told (these are as of")
        assert [each[0] for each in cells(tab, "2 groups")] == ["etl", "audit"]
        tab.picture(pictures / "groups-untold-1280-light.png", whole=True)
    finally:
        cluster.restart_broker(1)
    tab.wait(lambda: "Groups cannot be told" not in tab.text(), "they tell again")


def test_a_page_shows_the_groups_that_it_may_see(tmp_path: Path) -> None:
    of = {who: f"the-long-secret-of-{who}" for who in ("root", "carol")}
    serving = token_settings(tmp_path, "\n".join(f"{who} {secret}" for who, secret in of.items()))
    config = {**serving, **ONE_BROKER, "security.super.users": "root"}
    with sr.LocalCluster.start(brokers=1, directory=tmp_path / "cluster", config=config) as cluster:
        cluster.admin.create_topic("orders", SCHEMA, partitions=1, replication_factor=1)
        write(cluster, "orders", 1)
        for group in ("open", "secret"):
            with sr.Consumer(cluster.bootstrap, ["orders"], group=group, security=cluster.security) as consumer:
                read(consumer, RECORDS)
        cluster.admin.add_acls(*(f"carol describe {what}" for what in ("group open", "topic orders")))
        (tmp_path / "carol").mkdir()
        security = sr.Security.of(token_settings(tmp_path / "carol", f"carol {of['carol']}"))
        shown = {"Authorization": f"Bearer {of['carol']}"}
        with (
            sr.Admin(cluster.bootstrap, security=security, deadline_ms=5_000) as admin,
            sr.Reader(cluster.bootstrap, security=security, deadline_ms=2_000) as reader,
        ):
            own = PageServer.start(admin, reader, host="127.0.0.1", port=0, security=security, say=nobody_hears)
            viewer = Viewer(own.url)
            try:
                eventually(lambda: names(viewer, shown) == ["open"], "brokers heard")
                assert viewer.ask("/api/groups/secret", headers=shown).status == 404
            finally:
                own.stop()


def names(viewer: Viewer, headers: dict[str, str]) -> list[str]:
    return [each["group"] for each in viewer.ask("/api/groups", headers=headers).json["groups"]]
