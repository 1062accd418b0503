"""Records in a browser: a look at them, paging, a filter, and a tail that follows what is written."""

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

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("note", pa.string()),
        ("items", pa.list_(pa.struct([("name", pa.string()), ("price", pa.float64())]))),
        ("picture", pa.binary()),
    ]
)
PATH = "/api/topics/orders/records"
MARKUP = "<img src=x onerror=window.wasRun=true>"


@pytest.fixture(scope="module")
def cluster() -> Iterator[sr.LocalCluster]:
    with sr.LocalCluster.start(brokers=1, config={"default.replication.factor": 1}) as cluster:
        cluster.admin.create_topic("orders", SCHEMA, partitions=3, replication_factor=1)
        cluster.admin.create_topic("small", pa.schema([("id", pa.int64())]), partitions=1, replication_factor=1)
        write(cluster, range(250), partition=0)
        write(cluster, range(1_000, 1_030), partition=2)
        yield cluster


def write(cluster: sr.LocalCluster, numbers: range, *, partition: int) -> None:
    items = [[{"name": f"part {each}", "price": each / 4}] * (each % 4) for each in numbers]
    notes = [MARKUP if each % 5 == 0 else None if each % 5 == 1 else f"order {each} " * (each % 40) for each in numbers]
    columns = [list(numbers), notes, items, [bytes(range(each % 256)) for each in numbers]]
    with sr.Producer(cluster.bootstrap, security=cluster.security) as producer:
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        producer.send("orders", pa.record_batch(arrays, schema=SCHEMA), partition=partition).result()


@pytest.fixture
def records(cluster: sr.LocalCluster) -> str:
    cluster.wait_healthy()
    assert cluster.page is not None
    return f"{cluster.page}#/topics/orders/records"


def ids(tab: Tab) -> list[int]:
    """Those that the table shows, from the top."""
    found = "[...document.querySelectorAll('.records tbody tr')].map((row) => [...row.cells].at(-4).textContent)"
    return [int(each) for each in tab.ask(found)]


def click(tab: Tab, name: str) -> None:
    tab.wait(lambda: tab.ask(f"document.querySelector('button[data-key={name}]')?.disabled === false"), name)
    tab.ask(f"document.querySelector('button[data-key={name}]').click()")


def fill(tab: Tab, selector: str, value: str, event: str = "input") -> None:
    found = f"document.querySelector('{selector}')"
    tab.ask(f"{found}.value = {value!r}; {found}.dispatchEvent(new Event('{event}'))")


def test_rows_are_shown_and_paged_through(records: str, tab: Tab, pictures: Path) -> None:
    photograph(tab, records, pictures, "records", "200 records, the newest first")
    assert ids(tab)[:2] == [1_029, 1_028]
    assert tab.ask("window.wasRun") is None, "markup in a record is text"
    assert MARKUP in tab.text()
    click(tab, "older")
    says(tab, "80 records, the newest first")
    assert ids(tab)[-1] == 0
    assert tab.ask("document.querySelector('button[data-key=older]').disabled"), "there are no older ones"
    click(tab, "newer")
    says(tab, "200 records, the newest first")
    click(tab, "newer")
    says(tab, "there is nothing newer yet")


def test_a_place_a_filter_and_columns_are_chosen(records: str, tab: Tab, pictures: Path) -> None:
    show(tab, f"{records}?partition=0&start=100", "150 records, the newest first")
    assert (ids(tab)[0], ids(tab)[-1]) == (249, 100)
    fill(tab, "input[type=search]", "id >= 240 and id < 245")
    tab.ask("document.querySelector('form').requestSubmit()")
    says(tab, "5 records, the newest first")
    assert ids(tab) == [244, 243, 242, 241, 240]
    assert "where=id" in tab.ask("location.hash"), "a look has an address"
    tab.ask("document.querySelector('summary').click()")
    note = "document.querySelector('input[data-key=\"column note\"]')"
    tab.ask(f"{note}.focus(); {note}.click()")
    tab.wait(lambda: len(tab.ask("[...document.querySelectorAll('.records th')]")) == 5, "a column is gone")
    says(tab, "3 of 4 columns")
    assert tab.ask("document.activeElement.dataset.key") == "column note", "the focus stays where it was"
    photograph(tab, f"{records}?where=id+%3E+many", pictures, "records-refused", "id is int64, and 'many' is none")
    tab.said.clear()  # what was refused is in the console, as it should be
    show(tab, f"{records}?partition=0&start=9999", "orders-0 ends at offset 250, below 9999")
    tab.said.clear()


def test_a_tail_follows_and_can_be_paused(cluster: sr.LocalCluster, records: str, tab: Tab, pictures: Path) -> None:
    show(tab, f"{records}?start=earliest", "200 records, the newest first")
    click(tab, "follow")
    says(tab, "following")
    tab.wait(lambda: ids(tab)[:1] == [1_029], "it begins with the newest, wherever the view was")
    write(cluster, range(2_000, 2_003), partition=1)
    tab.wait(lambda: ids(tab)[:3] == [2_002, 2_001, 2_000], "what is written comes by itself")
    assert len(ids(tab)) == 200, "and what is too old goes"
    write(cluster, range(3_000, 3_300), partition=1)
    says(tab, "100 records came faster than they are shown")
    assert (ids(tab)[0], ids(tab)[-1]) == (3_299, 3_100)
    tab.picture(pictures / "records-following-1280-light.png")
    click(tab, "follow")
    says(tab, "Follow")
    write(cluster, range(4_000, 4_001), partition=1)
    asked = "performance.getEntriesByType('resource').filter((each) => each.name.includes('records?')).length"
    before = tab.ask(asked)
    show_views = "performance.getEntriesByType('resource').filter((each) => each.name.includes('api/view')).length"
    viewed = tab.ask(show_views)
    tab.wait(lambda: tab.ask(show_views) >= viewed + 2, "the page goes on for longer than a tail waits")
    assert (ids(tab)[0], tab.ask(asked)) == (3_299, before)
    click(tab, "follow")
    tab.wait(lambda: ids(tab)[:1] == [4_000], "it goes on where it was")


def test_the_topic_and_its_partitions_lead_to_their_records(records: str, tab: Tab) -> None:
    page = records.partition("#")[0]
    for path in ("#/topics/orders", "#/topics/orders/2"):
        show(tab, page + path, "Records")
        tab.ask("[...document.querySelectorAll('#view a')].find((each) => each.textContent === 'Records').click()")
        says(tab, "the newest first")
    assert ids(tab)[-1] == 1_000
    tab.wait(lambda: tab.ask("document.querySelector('select').value") == "2", "its partition is chosen")


def test_a_topic_gets_another_column_while_it_is_followed(cluster: sr.LocalCluster, records: str, tab: Tab) -> None:
    small = records.replace("orders", "small")
    show(tab, small, "no records here")
    click(tab, "follow")
    says(tab, "following")
    wider = pa.schema([("id", pa.int64()), ("region", pa.string())])
    with sr.Producer(cluster.zookeeper) as producer:
        producer.send("small", {"id": [1]}).result()
        says(tab, "1 record, the newest first")
        cluster.admin.widen_topic("small", wider)
        producer.send("small", pa.record_batch([[2], ["north"]], schema=wider)).result()
    says(tab, "2 records, the newest first")
    says(tab, "region")
    assert tab.ask("[...document.querySelectorAll('.records tbody tr')].map((row) => row.cells.length)")[0] == 5


def test_who_may_not_read_a_topic_sees_no_record_of_it(tmp_path: Path) -> None:
    """A page shows what whoever it asks as may read, to those alone whom it lets in."""
    of = {who: f"the-long-secret-of-{who}" for who in ("root", "carol")}
    serving = token_settings(tmp_path, "\n".join(f"{who} {secret}" for who, secret in of.items()))
    config = {**serving, "security.super.users": "root", "default.replication.factor": 1}
    with sr.LocalCluster.start(brokers=1, directory=tmp_path / "cluster", config=config) as cluster:
        cluster.admin.create_topic("orders", SCHEMA, partitions=1, replication_factor=1)
        write(cluster, range(3), partition=0)
        cluster.admin.add_acls("carol describe topic orders")
        assert cluster.page is not None
        viewer = Viewer(cluster.page)
        assert viewer.ask(PATH, headers=shown(of["carol"])).status == 401, "it is for super users"
        assert viewer.ask(PATH, headers=shown(of["root"])).json["rows"][2][1] == 2
        (tmp_path / "carol").mkdir()
        security = sr.Security.of(token_settings(tmp_path / "carol", f"carol {of['carol']}"))
        with (
            sr.Admin(cluster.bootstrap, security=security) as admin,
            sr.Reader(cluster.bootstrap, security=security, deadline_ms=2_000) as reader,
        ):
            own = PageServer.start(admin, reader, host="127.0.0.1", port=0, security=security, say=nobody_hears)
            eventually(lambda: Viewer(own.url).ask(PATH, headers=shown(of["carol"])).status == 403, "brokers heard")
            refused = Viewer(own.url).ask(PATH, headers=shown(of["carol"])).json
            own.stop()
        assert (refused["error"], "carol may not read topic orders" in refused["message"]) == (
            "TOPIC_AUTHORIZATION_FAILED",
            True,
        )


def shown(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}
