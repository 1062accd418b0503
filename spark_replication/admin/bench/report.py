"""What all measurements found, as a folder: JSON for programs, a table in Markdown, and a chart of each comparison."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

from spark_replication.admin.bench.harness import Beside, Row

FIGURES, TABLE = "figures.json", "table.md"
LIBRARIES = ("pyspark", "pyarrow", "deltalake", "kazoo")


class Section(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    #: What is alike on all sides, and what differs.
    conditions: str
    rows: Sequence[Row]


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    date: str
    processor: str
    processors: int
    memory_gb: float
    kernel: str
    versions: dict[str, str]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    machine: Machine
    #: How many rounds figures are the medians of.
    rounds: str
    sections: Sequence[Section]
    #: What did not run, and why.
    missing: Sequence[str]


def this_machine(**versions: str) -> Machine:
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        processor=_processor(),
        processors=len(os.sched_getaffinity(0)),
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        kernel=f"{platform.system()} {platform.release()}",
        versions={"Python": platform.python_version(), **{name: version(name) for name in LIBRARIES}, **versions},
    )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def write(report: Report, folder: Path) -> None:
    """Write it over what the folder has of an earlier state of the same report."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FIGURES).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    (folder / TABLE).write_text(table(report), encoding="utf-8")


def table(report: Report) -> str:
    """The report in Markdown."""
    machine = report.machine
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    parts = [
        f"{machine.date}; {machine.processors} processors ({machine.processor}), {machine.memory_gb} GB, "
        f"{machine.kernel}; {versions}. {report.rounds}",
        *(_table(section) for section in report.sections),
    ]
    if report.missing:
        parts.append("\n".join(["Not measured:", *(f"- {each}" for each in report.missing)]))
    return "\n\n".join(parts) + "\n"


def _table(section: Section) -> str:
    columns, lines = listing(section.rows)
    return "\n".join(
        [
            f"**{section.title}.** {section.conditions}",
            "",
            *(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *lines)),
        ]
    )


def listing(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """A column for each side, and one for the ratio of each that another is compared with; and their cells."""
    sides = list(dict.fromkeys(side for row in rows for side in (row.side, *(each.side for each in row.beside))))
    peers = {each.side for row in rows for each in row.beside}
    columns = [""]
    for side in sides:
        columns += [side, "ratio"] if side in peers else [side]
    lines = []
    for row in rows:
        beside = {each.side: each for each in row.beside}
        cells = [f"{row.what}: {row.measure}"]
        for side in sides:
            figure = row.figure if side == row.side else beside[side].figure if side in beside else None
            cells.append(f"{_value(figure)} {row.unit if side == row.side else ''}".strip())
            if side in peers:
                cells.append(_ratio(beside[side]) if side in beside else "")
        lines.append(cells)
    return columns, lines


def _ratio(beside: Beside) -> str:
    if beside.least_ratio == beside.most_ratio:
        return _value(beside.ratio)
    return f"{_value(beside.ratio)} ({_value(beside.least_ratio)} to {_value(beside.most_ratio)})"


def _value(figure: float | None) -> str:
    """Three digits say what a measurement can."""
    return "" if figure is None else f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"
