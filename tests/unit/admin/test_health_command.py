"""`spark-replication health`: what it prints, and the exit code that scripts go by."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from spark_replication.admin.cli import health_command
from spark_replication.client.health import Health
from spark_replication.core.controller.verdict import Reason
from spark_replication.errors import RequestTimedOut
from tests.unit.admin.conftest import Run


def reason(**told: Any) -> Reason:
    fields = {"severity": "critical", "what": "has no leader: elect by hand", "count": 1, "subjects": ("orders-0",)}
    return Reason(**{**fields, "mend": "spark-replication leader elect --kind unclean orders-0", **told})


def health(*reasons: Reason, verdict: Any = "critical") -> Health:
    return Health(
        verdict=verdict,
        reasons=reasons,
        cluster_id="c",
        controller=None,
        brokers=2,
        topics=1,
        partitions=1,
        leaderless=1,
        under_min_isr=1,
        under_replicated=1,
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

    monkeypatch.setattr(health_command, "Admin", Asked)
    return told


@pytest.mark.parametrize(("verdict", "code"), [("healthy", 0), ("degraded", 1), ("critical", 2)])
def test_the_verdict_is_the_exit_code(run: Run, answers: list[Health | Exception], verdict: str, code: int) -> None:
    answers.append(health(verdict=verdict))
    shown = run("health", "-b", "127.0.0.1:1")
    assert (shown.exit, shown.err) == (code, "")
    assert shown.out == f"{verdict}  2 brokers, 1 topics, 1 partitions; controller none\n"


def test_a_reason_says_what_set_it_off_and_what_mends_it(run: Run, answers: list[Health | Exception]) -> None:
    at_ms = round((time.time() - 300) * 1_000)
    answers.append(health(reason(because="broker 2 gone\x1b[2J", cause="7.3", since_ms=at_ms), reason(mend="")))
    lines = run("health", "-b", "127.0.0.1:1").out.splitlines()
    assert lines[1] == "critical  orders-0 has no leader: elect by hand"
    assert lines[2].startswith("    because: broker 2 gone\\x1b[2J, 20")
    assert lines[2].endswith("UTC, 5 minutes ago; more: spark-replication mirror events --cause 7.3")
    assert lines[3] == "    mend: spark-replication leader elect --kind unclean orders-0"
    assert lines[4:] == ["critical  orders-0 has no leader: elect by hand"]


def test_programs_get_all_of_it(run: Run, answers: list[Health | Exception]) -> None:
    answers.append(health(reason()))
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
