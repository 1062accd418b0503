"""conf/alerts.yml can be read, and its expressions mean what Prometheus means by them."""

from __future__ import annotations

import re

import click
import pytest

from spark_replication.admin.cli.main import cli
from tests.alert_rules import is_true, rules
from tests.scrapes import Sample, Scrape


def scrape(at_s: float, **values: float) -> Scrape:
    """Of two instances, one of which has nothing but `a`."""
    of_one = tuple(Sample(name, (("instance", "one"),), value) for name, value in values.items())
    return Scrape(at_s, (*of_one, Sample("a", (("instance", "two"),), 3.0)))


BEFORE, AFTER = scrape(10, a=1, b_total=100, fell_total=100), scrape(20, a=2, b_total=120, fell_total=5, new_total=10)


@pytest.mark.parametrize(
    ("expr", "true"),
    [
        ("a > 2", True),
        ("a > 3", False),
        ("a < 3", True),
        ("a < 2", False),
        ("sum(a) > 4.9", True),
        ("sum(a) > 5", False),
        ("max(a) > 2.9", True),
        ("max(a) < 3", False),
        ("nothing > 0", False),
        ("sum(nothing) < 1", False),
        ("rate(b_total[5m]) > 1.9", True),
        ("rate(b_total[5m]) > 2", False),
        ("rate(fell_total[5m]) > 0.4", True),
        ("rate(fell_total[5m]) > 0.5", False),
        ("sum(rate(b_total[5m])) > 1.9", True),
        ("sum(rate(new_total[5m])) > 0", False),
        ("absent(a == 1)", True),
        ("absent(a == 3)", False),
        ("absent(nothing == 1)", True),
        ("a > 3 or b_total > 100", True),
        ("a > 3 or b_total > 120", False),
    ],
)
def test_what_an_expression_means(expr: str, true: bool) -> None:
    assert is_true(expr, BEFORE, AFTER) is true


@pytest.mark.parametrize("expr", ["a", "a >= 1", "avg(a) > 1", "a / b_total > 1"])
def test_what_no_test_can_see_is_an_error(expr: str) -> None:
    with pytest.raises(AssertionError, match="none of the forms"):
        is_true(expr, BEFORE, AFTER)


def test_every_rule_can_be_seen_and_says_what_to_do() -> None:
    found = rules()
    assert len({rule.alert for rule in found}) == len(found) >= 10
    for rule in found:
        assert rule.metrics
        assert set(rule.annotations) == {"summary", "description", "command"}
        is_true(rule.expr, BEFORE, AFTER)


def test_the_commands_that_mend_are_there_with_their_options() -> None:
    named = [each for rule in rules() for each in re.split(r"; | && ", rule.annotations["command"])]
    ours = [each for each in named if each.startswith("spark-replication ")]
    assert len(ours) >= 10
    for each in ours:
        words = each.split()[1:]
        command: click.Command = cli
        while isinstance(command, click.Group) and words and not words[0].startswith("--"):
            found = command.get_command(click.Context(command), words.pop(0))
            assert found is not None, each
            command = found
        options = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, command.name


def test_where_nobody_answers_one_alert_fires() -> None:
    nothing = Scrape(0, ())
    assert [rule.alert for rule in rules() if is_true(rule.expr, nothing, nothing)] == ["NoActiveController"]
