"""conf/alerts.yml, as far as its expressions go: which of its alerts one or two scrapes make true.

Prometheus' language has far more. A rule that is not of these forms is an error: no test would see it fire.

    <value> > N, <value> < N      the value of a metric, of rate(metric[time]), or sum(…) or max(…) of one of these
    absent(metric == N)           no sample of it has that value
    … or …                        one of both holds
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.scrapes import Sample, Scrape

FILE = Path(__file__).parents[1] / "conf" / "alerts.yml"

_NAME = r"[a-z_]+"
_COMPARED = re.compile(r"(?P<value>.+) (?P<sign>[<>]) (?P<bound>[0-9.]+)")
_ABSENT = re.compile(rf"absent\((?P<name>{_NAME}) == (?P<wanted>[0-9.]+)\)")
_OVER = re.compile(r"(?P<function>sum|max)\((?P<inner>.+)\)")
_RATE = re.compile(rf"rate\((?P<name>{_NAME})\[\d+m\]\)")
METRIC = re.compile(r"spark_replication_[a-z_]+")


class Rule(NamedTuple):
    alert: str
    expr: str
    annotations: dict[str, str]

    @property
    def metrics(self) -> set[str]:
        return set(METRIC.findall(self.expr))


def rules() -> list[Rule]:
    read: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return [
        Rule(found["alert"], found["expr"], found["annotations"])
        for group in read["groups"]
        for found in group["rules"]
    ]


def firing(before: Scrape, after: Scrape) -> set[str]:
    """As if each had lasted for long enough."""
    return {rule.alert for rule in rules() if is_true(rule.expr, before, after)}


def is_true(expr: str, before: Scrape, after: Scrape) -> bool:
    return any(_holds(part, before, after) for part in expr.split(" or "))


def _holds(expr: str, before: Scrape, after: Scrape) -> bool:
    if found := _ABSENT.fullmatch(expr):
        return all(sample.value != float(found["wanted"]) for sample in after.named(found["name"]))
    found = _COMPARED.fullmatch(expr)
    assert found is not None, f"{expr} is of none of the forms that tests can see"
    bound = float(found["bound"])
    values = _values(found["value"], before, after)
    return any(value > bound if found["sign"] == ">" else value < bound for value in values)


def _values(expr: str, before: Scrape, after: Scrape) -> list[float]:
    if found := _OVER.fullmatch(expr):
        inner = _values(found["inner"], before, after)
        return [sum(inner) if found["function"] == "sum" else max(inner)] if inner else []
    if found := _RATE.fullmatch(expr):
        known = {(sample.name, sample.labels): sample.value for sample in before.named(found["name"])}
        seconds = after.at_s - before.at_s
        both = [sample for sample in after.named(found["name"]) if (sample.name, sample.labels) in known]
        return [_increase(sample, known[sample.name, sample.labels]) / seconds for sample in both]
    assert re.fullmatch(_NAME, expr), f"{expr} is of none of the forms that tests can see"
    return [sample.value for sample in after.named(expr)]


def _increase(sample: Sample, earlier: float) -> float:
    """One that fell began anew. Of a series that began in between, Prometheus knows none."""
    return sample.value if sample.value < earlier else sample.value - earlier
