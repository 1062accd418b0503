"""Charts: what they say, and that they need no network and let nothing of what they tell into the page."""

from __future__ import annotations

import json
import re
from typing import Any

import altair as alt
import pytest

from spark_replication.admin.notebook.cells import grid_of
from spark_replication.admin.notebook.charts import OfflineChart, grid_chart, timeline_chart
from spark_replication.admin.notebook.leaderships import timeline_of
from tests.unit.admin.notebook.described import HOSTILE, event, partition, topic

DAY_MS = 24 * 3_600_000
CREATED = event(1, 10_000, None, (1, 0), kind="created")
LOST = event(2, 50_000, (1, 0), (None, 1), kind="leaderless", why="fenced_elr", because=HOSTILE)
ELECTED = event(3, 51_000, (None, 1), (2, 2), why="elr")
SHRUNK = event(4, 70_000, (2, 2), (2, 2), kind="isr")


def timeline(*events: Any, now_ms: int = 100_000, **told: Any) -> dict[str, Any]:
    return dict(timeline_chart(timeline_of(topic(partition()), events, now_ms, **told)).to_dict())


def grid(*partitions: Any) -> dict[str, Any]:
    return dict(grid_chart(grid_of([topic(*partitions)])).to_dict())


def test_a_bar_tells_who_led_and_why() -> None:
    first, nobody, last = timeline(CREATED, LOST, ELECTED)["datasets"]["bars"]
    assert (first["led by"], first["label"], first["leader epoch"]) == ("broker 1", "1", 0)
    assert (nobody["led by"], nobody["label"], nobody["how"]) == ("nobody", "", "fenced_elr")  # too short for its name
    assert nobody["since (UTC)"] == "1970-01-01 00:00:50.000"
    assert (last["led by"], last["because"], last["how"]) == ("broker 2", "broker 1 gone", "elr")


def test_what_began_before_all_events_says_so() -> None:
    (first,) = timeline(SHRUNK)["datasets"]["bars"]
    assert (first["how"], first["because"]) == ("before what is known", "")


def test_marks_are_events_and_a_lost_leader_is_drawn_last() -> None:
    marks = timeline(CREATED, LOST, ELECTED, SHRUNK)["datasets"]["marks"]
    assert [(mark["event"], mark["changed"]) for mark in marks] == [
        ("created", "leader"),
        ("elected", "leader"),
        ("isr", "replicas"),
        ("leaderless", "leader"),
    ]


def test_leaders_have_colours_and_nobody_has_one_where_it_is_needed() -> None:
    def domain(spec: dict[str, Any]) -> list[str]:
        return list(spec["layer"][0]["encoding"]["color"]["scale"]["domain"])

    assert domain(timeline(CREATED, LOST, ELECTED)) == ["broker 1", "broker 2", "nobody"]
    assert domain(timeline(CREATED)) == ["broker 1"]


@pytest.mark.parametrize(("now_ms", "shown"), [(100_000, "%H:%M:%S"), (2 * DAY_MS, "%d %b %H:%M")])
def test_the_axis_shows_the_day_where_there_are_several(now_ms: int, shown: str) -> None:
    assert timeline(CREATED, now_ms=now_ms)["layer"][0]["encoding"]["x"]["axis"]["format"] == shown


def test_a_cell_has_its_number_or_a_sign() -> None:
    assert [cell["sign"] for cell in grid(partition(0), partition(7, leader=None, isr=()))["datasets"]["cells"]] == [
        "0",
        "7",
    ]
    many = [partition(number) for number in range(300)]
    many += [
        partition(300, leader=None, isr=(), min_isr=2),
        partition(301, isr=(1,), min_isr=2),
        partition(302, isr=(1,)),
    ]
    spec = grid(*many)
    assert [cell["sign"] for cell in spec["datasets"]["cells"][-4:]] == ["", "×", "!", ""]
    assert spec["title"]["text"] == "303 partitions"
    assert spec["title"]["subtitle"] == "1 leaderless, 2 under min ISR, 3 under replicated, 300 in sync"
    assert spec["layer"][0]["encoding"]["color"]["scale"]["domain"] == [
        *("leaderless", "under min ISR", "under replicated", "in sync")
    ]


def test_a_cell_tells_its_replicas() -> None:
    (cell,) = grid(partition(0, leader=None, isr=()))["datasets"]["cells"]
    assert (cell["leader"], cell["in sync"], cell["replicas"]) == ("nobody", "none", "2, 1")


def test_a_grid_that_is_cut_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_replication.admin.notebook.cells.CELLS_MAX", 1)
    assert grid(partition(0), partition(1))["title"]["subtitle"] == "2 in sync; without 1 of those that are best"


def test_a_timeline_that_is_cut_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_replication.admin.notebook.leaderships.PARTITIONS_MAX", 1)
    told = timeline_of(topic(partition(0), partition(1)), [CREATED], 100_000)
    assert "2 partitions, the 1 that changed last; 1970" in timeline_chart(told).to_dict()["title"]["subtitle"]


def test_a_cluster_without_partitions_has_an_empty_grid() -> None:
    assert grid()["title"]["text"] == "0 partitions"


@pytest.mark.slow
@pytest.mark.parametrize(
    "chart",
    [
        timeline_chart(timeline_of(topic(partition()), [CREATED, LOST, ELECTED, SHRUNK], 100_000)),
        grid_chart(grid_of([topic(partition(0), partition(1, leader=None, isr=()))])),
    ],
)
def test_a_chart_is_drawn_without_a_network(chart: OfflineChart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_replication.admin.notebook.charts._bundle", lambda: "window.vegaEmbed = bundled;")
    html = chart._repr_mimebundle_()["text/html"]
    assert "window.vegaEmbed = bundled;" in html
    assert html.count("<script>") == html.count("</script>") == 1
    assert re.findall(r"(?:src|href)=|\"url\":", html) == []
    name = re.search(r'<div id="(chart-[0-9a-f]{32})">', html)
    assert name is not None
    assert f'vegaEmbed("#{name[1]}"' in html
    assert chart.offline_html() != html  # a page may hold a chart twice
    from vl_convert import vegalite_to_svg

    assert vegalite_to_svg(chart.to_dict()).startswith("<svg")


@pytest.mark.slow
def test_what_others_wrote_ends_no_script() -> None:
    spec = timeline(CREATED, LOST)
    assert "<" not in json.dumps(spec["datasets"])
    chart = timeline_chart(timeline_of(topic(partition()), [CREATED], 100_000)).properties(title=HOSTILE)
    assert isinstance(chart, OfflineChart)
    assert HOSTILE not in chart.offline_html()


def test_a_renderer_that_was_chosen_is_used() -> None:
    chart = timeline_chart(timeline_of(topic(partition()), [CREATED], 100_000))
    with alt.renderers.enable("json"):
        assert "application/json" in chart._repr_mimebundle_()[0]
