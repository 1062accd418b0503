"""`spark-replication health`: what it prints, and the exit code that scripts go by."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from spark_replication.admin.cli import health_command
from spark_replication.client.asking.health import Health
from spark_replication.errors import RequestTimedOut
from spark_replication.view.problem import mend_from
from spark_replication.view.verdict import Consequence, Incident, Reason
from tests.unit.admin.conftest import Run


def reason(**told: Any) -> Reason:
    fields = {"severity": "critical", "what": "has no leader: elect by hand", "count": 1, "subjects": ("orders-0",)}
    return Reason(**{**fields, "mend": "spark-replication leader elect --kind unclean orders-0", **told})


def incident(**told: Any) -> Incident:
    mend = mend_from("spark-replication leader elect --kind unclean orders-0")
    fields = {"severity": "critical", "what": "orders-0 has no leader: elect by hand", "mends": (mend,)}
    return Incident(**{**fields, "consequences": (), **told})


def health(*incidents: Incident, reasons: tuple[Reason, ...] = (), verdict: Any = "critical") -> Health:
    return Health(
        verdict=verdict,
        reasons=reasons,
        incidents=incidents,
        cluster_id="c",
        controller=None,
        brokers=2,
        topics=1,
        partitions=1,
        leaderless=1,
        under_min_isr=1,
        under_replicated=1,
        moving=0,
    )


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Health | Exception]:
    """What the cluster tells, the first first; the last again and again."""
    told: list[Health | Exception] = []

    class Asked:
        def __init__(self, *_arguments: Any, **_options: Any) -> None:
            pass

        def health(self) -> Health:
            found = told.pop(0) if len(told) > 1 else told[0]
            if isinstance(found, Exception):
                raise found
            return found

        def close(self) -> None:
            pass

    monkeypatch.setattr(health_command, "admin_at", Asked)
    return told


def test_a_place_in_the_guide_is_named_by_a_command(run: Run, answers: list[Health | Exception]) -> None:
    answers.append(health(incident(guide="operate#a-partition-has-no-leader"), incident(what="x", guide="")))
    lines = [line.strip() for line in run("health", "-b", "127.0.0.1:1").out.splitlines()]
    assert lines.count("more: spark-replication guide operate#a-partition-has-no-leader") == 1
    assert [line for line in lines if line.startswith("more")] == lines[3:4]


@pytest.mark.parametrize(("verdict", "code"), [("healthy", 0), ("degraded", 1), ("critical", 2)])
def test_the_verdict_is_the_exit_code(run: Run, answers: list[Health | Exception], verdict: str, code: int) -> None:
    answers.append(health(verdict=verdict))
    shown = run("health", "-b", "127.0.0.1:1")
    assert (shown.exit, shown.err) == (code, "")
    assert shown.out == f"{verdict}  2 brokers, 1 topics, 1 partitions; controller none\n"


def test_a_reason_says_what_set_it_off_and_what_mends_it(run: Run, answers: list[Health | Exception]) -> None:
    at_ms = round((time.time() - 300) * 1_000)
    answers.append(health(incident(because="broker 2 gone\x1b[2J", cause="7.3", since_ms=at_ms), incident(mends=())))
    lines = run("health", "-b", "127.0.0.1:1").out.splitlines()
    assert lines[1] == "critical  orders-0 has no leader: elect by hand"
    assert lines[2].startswith("    because: broker 2 gone\\x1b[2J, 20")
    assert lines[2].endswith("UTC, 5 minutes ago; more: spark-replication mirror events --cause 7.3")
    assert lines[3] == "    mend: spark-replication leader elect --kind unclean orders-0"
    assert lines[4:] == ["critical  orders-0 has no leader: elect by hand"]


def test_what_follows_from_a_cause_stands_below_it_and_each_command_in_a_line_of_its_own(
    run: Run, answers: list[Health | Exception]
) -> None:
    lost = Consequence(severity="critical", what="without a leader", count=1_200, subjects=("orders-0", "orders-1"))
    late = Consequence(severity="warning", what="with replicas that are not in sync", count=1, subjects=("orders-9",))
    mends = (mend_from("wait"), mend_from("if it is lost: spark-replication a; spark-replication b"))
    dead = incident(what="1 of 2 brokers is dead: 2", consequences=(lost, late), mends=mends)
    answers.append(health(dead))
    assert run("health", "-b", "127.0.0.1:1").out.splitlines()[1:] == [
        "critical  1 of 2 brokers is dead: 2",
        "    so: 1,200 partitions without a leader (orders-0, orders-1, …), 1 partition with replicas that are not in "
        "sync (orders-9)",
        "    mend: wait",
        "    or: if it is lost:",
        "        spark-replication a",
        "        spark-replication b",
    ]


def test_commands_that_would_not_find_the_cluster_come_with_the_line_that_names_it(
    run: Run, answers: list[Health | Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers.append(health(incident()))
    assert run("health", "-b", "127.0.0.1:1").err == (
        "for these commands: export SPARK_REPLICATION_BOOTSTRAP=127.0.0.1:1\n"
    )
    monkeypatch.setenv("SPARK_REPLICATION_BOOTSTRAP", "127.0.0.1:2")
    assert run("health", "-b", "127.0.0.1:1").err.endswith("=127.0.0.1:1\n")
    assert run("health").err == ""
    answers[0] = health(incident(mends=()))
    assert run("health", "-b", "127.0.0.1:1").err == ""


def test_programs_get_all_of_it(run: Run, answers: list[Health | Exception]) -> None:
    answers.append(health(incident(), reasons=(reason(),)))
    shown = run("health", "-b", "127.0.0.1:1", "--format=json")
    found = json.loads(shown.out)
    assert (shown.exit, found["verdict"], found["controller"]) == (2, "critical", None)
    assert found["reasons"] == [
        {
            "severity": "critical",
            "what": "has no leader: elect by hand",
            "count": 1,
            "subjects": ["orders-0"],
            "mend": "spark-replication leader elect --kind unclean orders-0",
            "because": "",
            "cause": None,
            "since_ms": None,
        }
    ]
    assert found["incidents"] == [
        {
            "severity": "critical",
            "what": "orders-0 has no leader: elect by hand",
            "consequences": [],
            "mends": [{"words": "", "commands": ["spark-replication leader elect --kind unclean orders-0"]}],
            "guide": "",
            "because": "",
            "cause": None,
            "since_ms": None,
        }
    ]


def test_no_answer_at_all_is_critical(run: Run, answers: list[Health | Exception]) -> None:
    answers.append(RequestTimedOut("nobody answers: start it"))
    shown = run("health", "-b", "127.0.0.1:1")
    assert (shown.exit, shown.out) == (2, "")
    assert "nobody answers" in shown.err


def test_watching_goes_on_over_exit_codes_and_errors(
    run: Run, answers: list[Health | Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers.extend([health(), RequestTimedOut("away"), health(verdict="healthy")])
    waits = iter([None, None, KeyboardInterrupt()])

    def sleep(seconds: float) -> None:
        assert seconds == 0.5
        if (ends := next(waits)) is not None:
            raise ends

    monkeypatch.setattr("spark_replication.admin.cli.listing.time.sleep", sleep)
    shown = run("health", "-b", "127.0.0.1:1", "--watch", "0.5")
    assert [line.split()[0] for line in shown.out.splitlines()] == ["critical", "healthy"]
    assert "away" in shown.err
    assert shown.exit == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0 s ago"), (119, "119 s ago"), (7_199, "120 minutes ago"), (7_200, "2 hours ago")]
)
def test_how_long_ago(seconds: float, text: str) -> None:
    assert health_command._ago(seconds) == text


@pytest.mark.parametrize(
    "asked", [("health",), ("partitions",), ("topics",), ("acls", "list"), ("brokers",), ("consume", "orders")]
)
def test_a_wrong_address_is_told_soon(run: Run, asked: tuple[str, ...]) -> None:
    ran = run(*asked, "-b", "127.0.0.1:1", "--wait-for-cluster", 0.1)
    assert (ran.exit, ran.out) == (2 if asked == ("health",) else 1, "")
    assert ran.err.startswith("error: CLUSTER_NOT_FOUND: nobody has answered at '127.0.0.1:1' for 0 s")
    assert ran.err.count("\n") == 1
