"""`spark-replication bench`: what is beside what, and what is refused before anything starts."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from spark_replication.admin.bench.everything import PARTS
from spark_replication.admin.bench.harness import Harness, Rounds
from spark_replication.admin.cli.bench_command import Comparison, bench
from spark_replication.admin.cli.main import cli
from spark_replication.config import SecurityMode

HARNESS = Harness(Rounds(1, 1), 0.0, lambda _: None)


@pytest.mark.parametrize(
    ("modes", "beside", "peers"),
    [
        (("none",), (), ["kafka"]),
        (("none",), ("nothing",), []),
        (("none",), ("kafka", "bare"), ["kafka", "bare"]),
        (("none", "token"), (), []),
        (("token",), (), []),
        (("none", "token"), ("bare",), ["bare"]),
    ],
)
def test_who_is_beside_ours(modes: tuple[SecurityMode, ...], beside: tuple[str, ...], peers: list[str]) -> None:
    assert Comparison(HARNESS, modes, beside, "table").peers == peers


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("produce --rate 200 --meanwhile reassignment --beside bare", "the bare loop has no replicas that move"),
        ("failover --beside bare", "beside it is Kafka, if a broker is lost"),
        ("failover --beside kafka --pages 2", "beside it is Kafka, if a broker is lost"),
        ("failover --beside kafka --write never", "beside it is Kafka, if a broker is lost"),
        ("failover --beside kafka --of controller", "beside it is Kafka, if a broker is lost"),
        ("failover --of controller --security token", "add --successor restarted"),
        ("all --only nothing", "is not one of"),
        ("all --set partition=3", "a plan has no partition"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(arguments: str, why: str) -> None:
    refused = CliRunner().invoke(cli, ["bench", *arguments.split()])
    assert refused.exit_code != 0
    assert why in refused.output + str(refused.exception)


def test_there_are_nine_commands_and_all_names_its_parts() -> None:
    assert set(bench.commands) == {
        "all",
        "produce",
        "consume",
        "columns",
        "tables",
        "failover",
        "soak",
        "scale",
        "decide",
    }
    said = CliRunner().invoke(cli, ["bench", "all", "--help"]).output
    assert all(name in said for name in (*PARTS, "mirror_commits"))
