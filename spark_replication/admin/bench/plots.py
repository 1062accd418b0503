"""A chart of each comparison, as a PNG. Import this module only to draw: altair is an extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import altair as alt

from spark_replication.admin.bench.harness import Row
from spark_replication.admin.bench.report import Section

_COLOURS = ("#4477aa", "#ee7733", "#228833", "#aa3377")
_WIDTH_PX = 420


def draw(sections: Sequence[Section], folder: Path) -> list[Path]:
    """Draw each section that compares. Returns the files."""
    return [_draw(section, folder) for section in sections if any(row.beside for row in section.rows)]


def _draw(section: Section, folder: Path) -> Path:
    """A chart for each unit, since one axis cannot have two."""
    rows = [row for row in section.rows if row.beside]
    units = dict.fromkeys(row.unit for row in rows)
    charts = (_bars([row for row in rows if row.unit == unit], unit) for unit in units)
    path = folder / f"{section.title.lower().replace(' ', '-')}.png"
    alt.vconcat(*charts).properties(title=section.title).save(path, scale_factor=2)
    return path


def _bars(rows: Sequence[Row], unit: str) -> alt.Chart:
    values = [
        {"what": f"{row.what}: {row.measure}", "side": side, "figure": figure}
        for row in rows
        for side, figure in ((row.side, row.figure), *((each.side, each.figure) for each in row.beside))
    ]
    names = [list(dict.fromkeys(str(value[name]) for value in values)) for name in ("what", "side")]
    bars: alt.Chart = (
        alt.Chart(alt.InlineData(values))
        .mark_bar()
        .encode(
            x=alt.X("figure:Q", title=unit),
            y=alt.Y("what:N", title=None, sort=names[0], axis=alt.Axis(labelLimit=400)),
            yOffset=alt.YOffset("side:N", sort=names[1]),
            color=alt.Color("side:N", title=None, scale=alt.Scale(domain=names[1], range=list(_COLOURS))),
        )
        .properties(width=_WIDTH_PX)
    )
    return bars
