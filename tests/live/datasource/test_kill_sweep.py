"""A few runs of the kill sweep, which a person runs as a whole: python -m tests.live.datasource.kill_sweep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.datasource.held import POINTS
from tests.live.datasource.kill_sweep import ROWS, Story, Sweep, assert_once, story, swept

pytestmark = [pytest.mark.trust, pytest.mark.live, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweep]:
    with swept(tmp_path_factory.mktemp("sweep")) as sweep:
        yield sweep


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("broker", Story(POINTS[6], 2, "broker", 1, 2, "text", more_partitions=False)),
        ("python", Story(POINTS[8], 2, "python", 0, 3, "text", more_partitions=True)),
        ("driver", Story(POINTS[7], 2, "driver", 0, 3, "id", more_partitions=True)),
    ],
)
def test_whoever_is_killed_within_a_micro_batch_each_row_is_there_once(sweep: Sweep, name: str, told: Story) -> None:
    assert sweep.run(told, name).endswith("ended")


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([*range(1, ROWS)], r"1 rows are lost, as \[0\], and 0 doubled"),
        ([*range(ROWS), 7], r"1 rows are doubled, as \[7\]"),
        ([*range(1, ROWS), 7], r"1 rows are lost, as \[0\], and 1 doubled"),
    ],
)
def test_rows_that_are_lost_or_doubled_break_a_run(ids: list[int], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        assert_once(ids, "ended")


def test_a_seed_has_a_story_for_every_point_and_victim_and_always_the_same() -> None:
    stories = [story(1, run) for run in range(200)]
    assert stories == [story(1, run) for run in range(200)]
    assert {(each.point, each.victim) for each in stories} == {
        (point, victim) for point in POINTS for victim in ("driver", "python", "broker", "controller")
    }
    assert {each.alive for each in stories} == {1, 2, 3}
