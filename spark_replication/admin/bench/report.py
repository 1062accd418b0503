"""What all measurements found, as a folder: JSON for programs, a table in Markdown, and a chart of each comparison."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

FIGURES, TABLE = "figures.json", "table.md"
LIBRARIES = ("pyspark", "pyarrow", "deltalake", "kazoo")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of ours, and a peer's or a limit's, if there is one."""

    what: str
    unit: str
    ours: float
    #: None: there is no peer, or it could not run.
    theirs: float | None = None
    #: How many times better ours is. Of a limit: which part of it was reached.
    ratio: float | None = None
    #: In the worst and the best of the rounds.
    least_ratio: float | None = None
    most_ratio: float | None = None


class Section(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    #: Who is measured beside us; None: nobody.
    peer: str | None
    #: What is alike on both sides, and what differs.
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
    #: How many rounds the figures beside a peer are the medians of.
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
    lines = [f"**{section.title}.** {section.conditions}", ""]
    if section.peer is None:
        lines += ["| | ours |", "| --- | --- |"]
        lines += [f"| {row.what} | {_value(row.ours)} {row.unit} |" for row in section.rows]
    else:
        lines += [f"| | ours | {section.peer} | ratio |", "| --- | --- | --- | --- |"]
        lines += [
            f"| {row.what} | {_value(row.ours)} {row.unit} | {_value(row.theirs)} | {_ratio(row)} |"
            for row in section.rows
        ]
    return "\n".join(lines)


def _ratio(row: Row) -> str:
    if row.least_ratio is None or row.most_ratio is None:
        return _value(row.ratio)
    return f"{_value(row.ratio)} ({_value(row.least_ratio)} to {_value(row.most_ratio)})"


def _value(figure: float | None) -> str:
    """Three digits say what a measurement can."""
    return "" if figure is None else f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
