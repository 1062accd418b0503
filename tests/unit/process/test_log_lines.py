"""What a process says of itself: all of it in a file, a line of JSON each, and its warnings to whoever looks on."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_replication.process import logs
from spark_replication.process.logs import log_as_text, log_to_file, logged_in

FORGED = "orders\n2026-11-21 10:00:00,000 INFO x controller at epoch 99\x1b[2J\x9b31m\u202e"


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """As it was before, afterwards: it is every test's."""
    root, ours = logging.getLogger(), logging.getLogger("spark_replication")
    before = root.handlers[:], root.level, ours.level
    yield root
    for handler in root.handlers:
        if handler not in before[0]:
            handler.close()
    root.handlers[:], root.level, ours.level = before


def test_all_is_in_the_file_and_warnings_are_shown(
    tmp_path: Path, root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "driver.log"
    log_to_file(path, process="driver")
    logging.getLogger("spark_replication.live.controller.host").info("controller at epoch %d", 7)
    logging.getLogger("spark_replication.live.controller.host").warning("no longer the controller")
    logging.getLogger("kazoo.client").info("Connecting to 127.0.0.1")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["level"], line["process"], line["message"], line["from"]) for line in lines] == [
        ("INFO", "driver", "controller at epoch 7", "live.controller.host"),
        ("WARNING", "driver", "no longer the controller", "live.controller.host"),
    ]
    assert capsys.readouterr().err == "no longer the controller\n"


def test_a_task_in_somebody_elses_process_has_a_file_for_as_long_as_it_lasts(
    tmp_path: Path, root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    root.handlers.clear()  # as in a worker of Spark's
    ours, path = logging.getLogger("spark_replication.live.guarding.guardian"), tmp_path / "logs" / "guardian-0.log"
    before = logging.getLogger("spark_replication").level
    with logged_in(path, pid=7):
        ours.info("broker 1 is kept")
        ours.warning("broker 1 has ended")
        logging.getLogger("somebody.else").warning("theirs")
    ours.warning("another's")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["pid"], line["message"]) for line in lines] == [(7, "broker 1 is kept"), (7, "broker 1 has ended")]
    assert capsys.readouterr().err == "broker 1 has ended\ntheirs\nanother's\n"
    assert logging.getLogger("spark_replication").level == before


def test_where_somebody_has_set_up_logging_a_task_shows_nothing_twice(
    tmp_path: Path, root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    log_as_text(logging.WARNING)
    with logged_in(tmp_path / "guardian-0.log"):
        logging.getLogger("spark_replication").warning("broker 1 has ended")
    assert capsys.readouterr().err.count("broker 1 has ended") == 1


def test_a_task_goes_on_where_its_file_cannot_be_or_its_disk_is_full(
    tmp_path: Path, root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    root.handlers.clear()
    (tmp_path / "file").touch()
    with logged_in(tmp_path / "file" / "guardian-0.log"):
        logging.getLogger("spark_replication").warning("broker 1 has ended")
    (tmp_path / "guardian-0.log").symlink_to("/dev/full")
    with logged_in(tmp_path / "guardian-0.log"):
        logging.getLogger("spark_replication").warning("broker 2 has ended")
    said = capsys.readouterr().err
    assert f"{tmp_path}/file/guardian-0.log cannot be written: " in said
    assert "broker 1 has ended" in said
    assert "Traceback" not in said


def test_the_file_does_not_grow_without_end(
    tmp_path: Path, root: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES_MAX", 2_000)
    path = tmp_path / "driver.log"
    log_to_file(path, process="driver")
    for number in range(100):
        logging.getLogger("spark_replication").info("line %d", number)
    kept = sorted(tmp_path.iterdir())
    assert [each.name for each in kept] == ["driver.log", "driver.log.1"]
    assert all(each.stat().st_size <= 2_000 for each in kept)
    assert '"line 99"' in path.read_text()


def test_a_name_begins_no_other_line_and_steers_no_terminal(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    log_as_text(logging.INFO)
    log = logging.getLogger("spark_replication.live.controller.host")
    log.info("no topic %s", FORGED)
    try:
        raise ValueError(FORGED)
    except ValueError:
        log.exception("not understood")
    first, second, *below = capsys.readouterr().err.splitlines()
    shown = r"orders\n2026-11-21 10:00:00,000 INFO x controller at epoch 99\x1b[2J\x9b31m\u202e"
    assert re.fullmatch(rf"\S+ \S+,\d{{3}} INFO {re.escape(log.name)} no topic {re.escape(shown)}", first)
    assert second.endswith(f" ERROR {log.name} not understood")
    assert below[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") for line in below), "so none of them is taken for a record"
    assert not set("\x1b\x9b\u202e") & set("".join(below))


def test_lines_of_json_and_warnings_steer_no_terminal_either(
    tmp_path: Path, root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "driver.log"
    log_to_file(path)
    logging.getLogger("spark_replication").warning("no topic %s", FORGED)
    (line,) = path.read_text().splitlines()
    assert json.loads(line)["message"] == f"no topic {FORGED}"
    for told in (line, capsys.readouterr().err):
        assert not set("\x1b\x9b\u202e") & set(told)
