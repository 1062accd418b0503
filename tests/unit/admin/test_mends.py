"""What health says that mends something are commands of the shell, with options and arguments that they have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from msgspec.structs import replace

from spark_replication.admin.cli.main import cli
from spark_replication.client.asking.health import health_of
from spark_replication.config import BOOTSTRAP_VARIABLE
from spark_replication.core.controller.describing import described
from spark_replication.messages.descriptions import Metadata
from spark_replication.model import PartitionState, TopicPartition
from spark_replication.page.guide import place_in_guide
from spark_replication.view import health
from spark_replication.view.problem import GuidePlace
from tests.unit.core.stories import cluster_of, loss, state, topic

BROKERS = (1, 2, 3)
PACKAGE = Path(health.__file__).parents[1]
NAMED_IN_A_TEXT = re.compile(r"spark-replication guide ([a-z][\w/#-]*)")


def metadata(
    stored: PartitionState, *live: int, replicas: tuple[int, ...] = BROKERS, refused: bool = False, **more: Any
) -> Metadata:
    known = cluster_of(*live, topics={"foo": topic(replicas)}, states={"foo-0": stored})
    if refused:
        known.apply_failed(live[0], [TopicPartition("foo", 0)])
    return replace(described(known, None, "h:1"), **more)


TROUBLES = {
    "all dead": metadata(state(None, [], elr=[3])),
    "one dead": metadata(state(None, [], elr=[3]), 1, 2, replicas=(2, 3)),
    "lost": metadata(state(None, [], elr=[3]), 1, 2, replicas=(3,)),
    "leaderless": metadata(state(None, [], last_known_leader=3), *BROKERS),
    "about to be led": metadata(state(None, [], elr=[3]), *BROKERS),
    "behind": metadata(state(1, [1, 2]), *BROKERS),
    "moving": metadata(state(1, [1]), 1, 2, replicas=(1, 2)),
    "refused": metadata(state(1, [1, 2]), 3, 1, 2, refused=True),
    "lossy": metadata(state(1, [1, 2, 3], loss=loss()), *BROKERS),
    "silent ZooKeeper": metadata(state(1, [1, 2, 3]), *BROKERS, zookeeper_silent_ms=9_000),
    "unreadable": metadata(state(1, [1, 2, 3]), *BROKERS, unreadable=("/foo cannot be read: garbage",)),
    "mirror": metadata(state(1, [1, 2, 3]), *BROKERS, mirror_error="the disk is full"),
    "no controller": metadata(state(1, [1, 2, 3]), *BROKERS, controller=None),
}


def commands(told: Metadata) -> Iterator[str]:
    for incident in health_of(told, lambda _asked: ()).incidents:
        for mend in incident.mends:
            yield from mend.commands


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_command_that_mends_is_one_that_the_shell_takes(
    trouble: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for saved in ("moved.json", "anew.json"):
        (tmp_path / saved).touch()
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "127.0.0.1:1")
    for command in commands(TROUBLES[trouble]):
        name, *arguments = shlex.split(command)
        assert name == "spark-replication"
        asked: click.Command = cli
        context = cli.make_context(name, [*arguments])
        while isinstance(asked, click.Group):
            found, chosen, arguments = asked.resolve_command(context, arguments)
            assert chosen is not None
            context = chosen.make_context(found, [*arguments], parent=context)
            asked = chosen


@pytest.mark.parametrize("trouble", TROUBLES)
def test_what_takes_several_commands_names_a_place_in_the_guide(trouble: str) -> None:
    incidents = health_of(TROUBLES[trouble], lambda _asked: ()).incidents
    assert incidents
    assert [each.what for each in incidents if any(len(m.commands) > 1 for m in each.mends) and not each.guide] == []


@pytest.mark.parametrize("place", get_args(GuidePlace))
def test_each_place_in_the_guide_that_is_named_is_there(place: str) -> None:
    page, text = place_in_guide(place)
    assert text.strip()
    assert text in page.text


def test_so_is_each_that_a_text_of_the_code_names() -> None:
    said = {place for path in PACKAGE.rglob("*.py") for place in NAMED_IN_A_TEXT.findall(path.read_text())}
    assert said
    found = {place: place_in_guide(place) for place in sorted(said)}
    assert [place for place, (page, text) in found.items() if not text.strip() or text not in page.text] == []


def test_each_place_that_mends_know_of_is_named() -> None:
    text = Path(health.__file__).read_text()
    assert [place for place in get_args(GuidePlace) if f'"{place}"' not in text] == []


def test_all_troubles_but_those_that_end_by_themselves_have_commands() -> None:
    without = [trouble for trouble, told in TROUBLES.items() if not [*commands(told)]]
    assert without == ["refused"]
