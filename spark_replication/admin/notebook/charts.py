"""The timeline of a topic and the grid of a cluster, as altair's charts.

They show without a network, on light and dark pages. Colours are Paul Tol's, which colour-blind people tell apart, and
no colour is the only sign of anything. Import this module only to draw: altair is an extra.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from itertools import cycle
from typing import Any
from uuid import uuid4

import altair as alt
from vl_convert import javascript_bundle

from spark_replication.admin.notebook.cells import READABLE_PX, Grid
from spark_replication.admin.notebook.leaderships import Timeline
from spark_replication.messages.mirroring import ToldEvent
from spark_replication.model import BrokerId, TimeMs
from spark_replication.view.conditions import WORDS, Condition

Rows = list[dict[str, Any]]

# Its contrast is above 4 to 1 on white and on JupyterLab's dark background.
_GREY = "#7a7a7a"
_DARK = "#111111"
_LIGHT = "#ffffff"
_RED = "#cc3311"
_LEADERS = ("#77aadd", "#ee8866", "#eedd88", "#99ddff", "#44bb99", "#ffaabb", "#bbcc33", "#aaaa00", "#dddddd")
_CONDITION_COLOURS: dict[Condition, str] = {
    "leaderless": _RED,
    "under_min_isr": "#ee7733",
    "under_replicated": "#eecc66",
    "moving": "#77aadd",
    "in_sync": "#4477aa",
}
# The signs in cells that are too small for a number.
_SIGNS: dict[Condition, str] = {"leaderless": "×", "under_min_isr": "!"}
_ON_DARK: tuple[Condition, ...] = ("leaderless", "in_sync")
_NOBODY = "nobody"
_BAR_LABEL_SHARE = 0.03  # of the time that is shown: a shorter bar has no room for the leader's name
_DAY_MS = 24 * 3_600_000
_WIDTH_PX = 720
_STEP_PX = 26
_NUMBER_PX = 10

_HTML = """<div id="{name}"></div>
<script>
(function () {{
{bundle}
vegaEmbed("#{name}", {spec}, {options}).catch(console.error);
}})();
</script>"""
# No action leads to a page elsewhere.
_EMBED = {"mode": "vega-lite", "actions": {"export": True, "source": False, "compiled": False, "editor": False}}


@cache
def _bundle() -> str:
    """Vega's JavaScript. It takes seconds, once a process."""
    return javascript_bundle("window.vegaEmbed = vegaEmbed;")


class OfflineChart(alt.LayerChart):
    """A chart that brings Vega's JavaScript along (0.9 MB), since altair's own default fetches it. If a renderer is
    chosen, the chart uses that: `alt.renderers.enable("svg")` makes small pictures, without tooltips."""

    def offline_html(self) -> str:
        # The parts were validated as they were made. To validate all again, with the data, takes a second for 10,000
        # cells. Events repeat what others have written, and a script ends at its first `</script>`.
        spec = json.dumps(self.to_dict(validate=False)).replace("<", "\\u003c")
        return _HTML.format(name=f"chart-{uuid4().hex}", bundle=_bundle(), spec=spec, options=json.dumps(_EMBED))

    def _repr_mimebundle_(self, *arguments: Any, **options: Any) -> Any:
        if alt.renderers.active != "default":
            return super()._repr_mimebundle_(*arguments, **options)
        return {"text/html": self.offline_html()}


def timeline_chart(told: Timeline) -> OfflineChart:
    """A row for each partition: who led when, and below that a mark for each event."""
    bars = [_bar(told, place) for place in range(len(told.leaderships))]
    marks = [_mark(each.event, "leader") for each in told.leaderships if each.event is not None]
    marks += [_mark(each, "replicas") for each in told.others]
    marks.sort(key=lambda mark: mark["event"] == "leaderless")  # what is drawn last is on top
    y = alt.Y("partition:O", title="partition", sort=list(told.partitions))
    time = alt.Scale(type="utc", domain=[told.since_ms, told.until_ms])
    shown = f", the {len(told.partitions)} that changed last" if len(told.partitions) < told.of else ""
    return _chart(
        [*_bar_layers(told, y, time), _mark_layer(y, time)],
        {"bars": bars, "marks": marks},
        f"Who led {told.topic}",
        f"{told.of} partitions{shown}; {_utc(told.since_ms)} to {_utc(told.until_ms)} UTC",
    ).properties(width=_WIDTH_PX, height=alt.Step(_STEP_PX))


def _bar_layers(told: Timeline, y: alt.Y, time: alt.Scale) -> list[alt.Chart]:
    """The bars, and the leaders' names in the bars that have room for one."""
    leaders = sorted({each.leader for each in told.leaderships if each.leader is not None})
    colours = {_named(leader): colour for leader, colour in zip(leaders, cycle(_LEADERS), strict=False)}
    if any(each.leader is None for each in told.leaderships):
        colours[_NOBODY] = _RED
    clock = "%H:%M:%S" if told.until_ms - told.since_ms < _DAY_MS else "%d %b %H:%M"
    base = alt.Chart(alt.NamedData("bars")).encode(y=y)
    bar = base.mark_bar(height={"band": 0.72}, stroke=_GREY, strokeWidth=0.5, clip=True).encode(
        x=alt.X("since:T", title="time (UTC)", scale=time, axis=alt.Axis(format=clock, tickCount=8)),
        x2="until:T",
        color=alt.Color(
            "led by:N",
            title="led by",
            scale=alt.Scale(domain=[*colours], range=[*colours.values()]),
            legend=alt.Legend(symbolType="square"),
        ),
        tooltip=_tooltip(
            *("partition", "led by", "leader epoch", "since (UTC)", "until (UTC)", "how", "because", "cause")
        ),
    )
    label = base.mark_text(align="left", dx=4, fontSize=11, fontWeight="bold", clip=True).encode(
        x=alt.X("since:T", scale=time), text="label:N"
    )
    return [
        bar,
        label.transform_filter(alt.datum["led by"] != _NOBODY).encode(color=alt.value(_DARK)),
        label.transform_filter(alt.datum["led by"] == _NOBODY).encode(color=alt.value(_LIGHT)),
    ]


def _mark_layer(y: alt.Y, time: alt.Scale) -> alt.Chart:
    """The marks of all events, also of leaderships too short for a visible bar. This layer moves and zooms a chart."""
    shapes = alt.Scale(domain=["leader", "replicas"], range=["triangle-up", "diamond"])
    marks: alt.Chart = (
        alt.Chart(alt.NamedData("marks"))
        .mark_point(filled=True, opacity=1, size=42, stroke=_DARK, strokeWidth=0.4, clip=True)
        .encode(
            x=alt.X("at:T", scale=time),
            y=y,
            yOffset=alt.value(_STEP_PX * 0.84),
            shape=alt.Shape("changed:N", title="what changed", scale=shapes),
            color=alt.when(alt.datum.event == "leaderless").then(alt.value(_RED)).otherwise(alt.value(_GREY)),
            tooltip=_tooltip("partition", "event", "at (UTC)", "changes", "why", "because", "cause"),
        )
        .add_params(alt.selection_interval(bind="scales", encodings=["x"]))
    )
    return marks


def grid_chart(told: Grid) -> OfflineChart:
    """Every partition as a cell, coloured by its condition."""
    shown = {cell.condition for cell in told.cells}
    colours = {condition: colour for condition, colour in _CONDITION_COLOURS.items() if condition in shown}
    scale = alt.Scale(domain=_words(colours), range=[*colours.values()])
    # A topic's name stands beside its first row.
    names = json.dumps({str(row): _plain(name) for row, name in told.topics.items()})
    beside = alt.Axis(labelExpr=f"{names}[datum.label] || ''", ticks=False, domain=False, labelLimit=200)
    base = alt.Chart(alt.NamedData("cells")).encode(
        x=alt.X("column:O", axis=None), y=alt.Y("row:O", title=None, axis=beside)
    )
    legend = alt.Legend(symbolType="square", orient="top", direction="horizontal", labelLimit=0)
    cell = base.mark_rect(stroke=_GREY, strokeWidth=0.5).encode(
        color=alt.Color("condition:N", title=None, scale=scale, legend=legend),
        tooltip=_tooltip("partition", "condition", "leader", "in sync", "replicas"),
    )
    sign_px = _NUMBER_PX if told.cell_px >= READABLE_PX else told.cell_px
    sign = base.mark_text(fontSize=sign_px, fontWeight="bold").encode(text="sign:N")
    on_dark = alt.FieldOneOfPredicate(field="condition", oneOf=_words(_ON_DARK))
    on_light = alt.FieldOneOfPredicate(
        field="condition", oneOf=_words([each for each in WORDS if each not in _ON_DARK])
    )
    signs = [
        sign.transform_filter(on_dark).transform_filter(alt.datum.sign != "").encode(color=alt.value(_LIGHT)),
        sign.transform_filter(on_light).transform_filter(alt.datum.sign != "").encode(color=alt.value(_DARK)),
    ]
    counted = ", ".join(f"{count} {WORDS[condition]}" for condition, count in told.counts.items() if count)
    left = told.partitions - len(told.cells)
    without = f"; without {left} of those that are best" if left else ""
    return _chart(
        [cell, *signs], {"cells": _cells(told)}, f"{told.partitions} partitions", f"{counted}{without}"
    ).properties(width=alt.Step(told.cell_px), height=alt.Step(told.cell_px))


def _words(conditions: Iterable[Condition]) -> list[str]:
    return [WORDS[each] for each in conditions]


def _cells(told: Grid) -> Rows:
    return [
        {
            "row": each.row,
            "column": each.column,
            "partition": _plain(f"{each.topic}-{each.partition.partition}"),
            "condition": WORDS[each.condition],
            "leader": _named(each.partition.leader),
            "in sync": _listed(each.partition.isr),
            "replicas": _listed(each.partition.replicas),
            "sign": str(each.partition.partition) if told.cell_px >= READABLE_PX else _SIGNS.get(each.condition, ""),
        }
        for each in told.cells
    ]


def _chart(layers: list[alt.Chart], datasets: dict[str, Rows], title: str, subtitle: str) -> OfflineChart:
    """A chart of named data: of other data, altair looks at each row once for each layer, and refuses more than 5,000
    rows."""
    heading = alt.TitleParams(_plain(title), subtitle=_plain(subtitle), anchor="start", offset=12)
    chart = OfflineChart(layer=layers, datasets=datasets, title=heading, background="transparent")
    text: dict[str, Any] = {"labelColor": _GREY, "titleColor": _GREY, "labelFontSize": 12, "titleFontSize": 12}
    chart.config = alt.Config(
        view=alt.ViewConfig(stroke=None),
        title=alt.TitleConfig(color=_GREY, subtitleColor=_GREY, fontSize=16, subtitleFontSize=12),
        axis=alt.AxisConfig(tickColor=_GREY, domainColor=_GREY, **text),
        axisX=alt.AxisConfig(gridColor=_GREY, gridOpacity=0.3),
        axisY=alt.AxisConfig(grid=False),
        legend=alt.LegendConfig(**text),
    )
    return chart


def _bar(told: Timeline, place: int) -> dict[str, Any]:
    each = told.leaderships[place]
    is_wide = each.until_ms - each.since_ms >= _BAR_LABEL_SHARE * (told.until_ms - told.since_ms)
    text = _NOBODY if each.leader is None else str(each.leader)
    return {
        "partition": each.partition,
        "led by": _named(each.leader),
        "leader epoch": each.leader_epoch,
        "since": each.since_ms,
        "until": each.until_ms,
        "since (UTC)": _utc(each.event.at_ms if each.event else each.since_ms),
        "until (UTC)": _utc(each.until_ms),
        "label": text if is_wide else "",
        "how": _plain(each.event.why) if each.event else "before what is known",
        "because": _plain(each.event.because) if each.event else "",
        "cause": _plain(each.event.cause) if each.event else "",
    }


def _mark(event: ToldEvent, changed: str) -> dict[str, Any]:
    return {
        "partition": event.partition,
        "event": event.kind,
        "changed": changed,
        "at": event.at_ms,
        "at (UTC)": _utc(event.at_ms),
        "changes": _plain("; ".join(event.changes)),
        "why": _plain(event.why),
        "because": _plain(event.because),
        "cause": _plain(event.cause),
    }


def _tooltip(*names: str) -> list[alt.Tooltip]:
    return [alt.Tooltip(field=name, type="nominal") for name in names]


def _named(leader: BrokerId | None) -> str:
    return _NOBODY if leader is None else f"broker {leader}"


def _listed(brokers: tuple[BrokerId, ...]) -> str:
    return ", ".join(map(str, brokers)) or "none"


def _plain(text: str | None) -> str:
    """The text, in which no tag can begin: altair's own HTML puts it into a script as it is."""
    return (text or "").replace("<", "‹")


def _utc(time_ms: TimeMs) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S}.{time_ms % 1_000:03}"
