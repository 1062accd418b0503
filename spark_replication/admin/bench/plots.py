"""A chart of each comparison, as a PNG. Import this module only to draw: altair is an extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import altair as alt

from spark_replication.admin.bench.report import Section

_COLOURS = ("#4477aa", "#ee7733")
_WIDTH_PX = 420


def draw(sections: Sequence[Section], folder: Path) -> list[Path]:
    """Draw each section that has a peer. Returns the files."""
    return [_draw(section, folder) for section in sections if any(row.theirs is not None for row in section.rows)]


def _draw(section: Section, folder: Path) -> Path:
    """A chart for each unit, since one axis cannot have two."""
    assert section.peer is not None, "it has figures"
    units = dict.fromkeys(row.unit for row in section.rows)
    found = folder / f"{section.title.lower().replace(' ', '-')}.png"
    alt.vconcat(*(_bars(section, unit) for unit in units)).properties(title=section.title).save(found, scale_factor=2)
    return found


def _bars(section: Section, unit: str) -> alt.Chart:
    rows = [row for row in section.rows if row.unit == unit and row.theirs is not None]
    sides = ("ours", str(section.peer))
    values = [
        {"what": row.what, "side": side, "figure": figure}
        for row in rows
        for side, figure in zip(sides, (row.ours, row.theirs), strict=True)
    ]
    bars: alt.Chart = (
        alt.Chart(alt.InlineData(values))
        .mark_bar()
        .encode(
            x=alt.X("figure:Q", title=unit),
            y=alt.Y("what:N", title=None, sort=[row.what for row in rows], axis=alt.Axis(labelLimit=400)),
            yOffset=alt.YOffset("side:N", sort=list(sides)),
            color=alt.Color("side:N", title=None, scale=alt.Scale(domain=list(sides), range=list(_COLOURS))),
        )
        .properties(width=_WIDTH_PX)
    )
    return bars
