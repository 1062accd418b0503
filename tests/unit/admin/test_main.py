"""The command itself: every command is where it is said to be, and has a help that reads well; shells complete it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import click
import pytest

from spark_replication.admin.cli import bench_command
from spark_replication.admin.cli.main import cli
from tests.unit.admin.conftest import Run


def commands(group: click.Group, *path: str) -> list[tuple[str, ...]]:
    context = click.Context(group)
    found: list[tuple[str, ...]] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += commands(command, *path, name)
    return found


@pytest.mark.parametrize("path", commands(cli), ids="-".join)
def test_each_has_a_help(run: Run, path: tuple[str, ...]) -> None:
    shown = run(*path, "--help")
    assert (shown.exit, shown.err) == (0, "")
    assert shown.out.startswith(f"Usage: spark-replication {' '.join(path)} [OPTIONS]")
    _usage, said, *_ = shown.out.split("\n\n")
    assert said.startswith("  "), "what it does comes first"
    assert not said.strip().startswith("Options:")


def test_the_help_says_what_each_does_in_a_whole_sentence(run: Run) -> None:
    shown = run("--help")
    assert "..." not in shown.out.partition("\n")[2]
    headings = [line for line in shown.out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings[0] == "Options:"
    assert len(headings) > 5, "by what people want to do"
    listed = [line.split()[0] for line in shown.out.splitlines() if line[:2] == "  " and line[2:3].strip()]
    for name in cli.list_commands(click.Context(cli)):
        assert listed.count(name) == 1, name


@pytest.mark.parametrize("group", ["topics", "brokers"])
def test_list_is_another_word_for_a_listing(run: Run, group: str) -> None:
    options = ("--wait-for-cluster", "0", "-b", "127.0.0.1:1")
    for words in (("list", *options), (*options, "list"), (*options[:2], "list", *options[2:])):
        refused = run(group, *words)
        assert (refused.exit, refused.out) == (1, ""), words
        assert "nobody has answered at '127.0.0.1:1'" in refused.err
    assert "bootstrap 'list'" in run(group, *options[:2], "-b", "list").err
    assert run(group, "--formt", "list").exit == 2
    assert (run(group, "lst", "-b", "127.0.0.1:1").exit, run(group, "list", "list").exit) == (2, 2)


def test_the_settings_are_listed_by_list_too(run: Run) -> None:
    assert run("settings", "list", "--format=json").out == run("settings", "--format=json").out


def test_a_negative_limit_is_no_option(run: Run) -> None:
    refused = run("quotas", "set", "alice", "streams", "-5", "-b", "127.0.0.1:1")
    assert (refused.exit, refused.out) == (2, "")
    assert "-5 is not in the range x>=1" in refused.err


def test_a_command_that_there_is_not_is_wrong_usage_with_a_hint(run: Run) -> None:
    refused = run("helth")
    assert (refused.exit, "No such command 'helth'" in refused.err) == (2, True)
    assert "health" in refused.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(run: Run, shell: str) -> None:
    shown = run("completion", shell)
    assert shown.exit == 0
    assert f"_SPARK_REPLICATION_COMPLETE={shell}_complete" in shown.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "complete"),
    [
        ("spark-replication he", "health"),
        ("spark-replication leader el", "elect"),
        ("spark-replication mirror sh", "show"),
    ],
)
def test_words_are_completed(words: str, complete: str) -> None:
    told = {"_SPARK_REPLICATION_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [
        sys.executable,
        "-c",
        "from spark_replication.admin.cli.main import cli; cli(prog_name='spark-replication')",
    ]
    ran = subprocess.run(command, env={**os.environ, **told}, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == f"plain,{complete}\n"


def test_a_bench_that_is_told_to_end_cleans_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned = []

    def measures(*_asked: int) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(60)
        finally:
            cleaned.append(True)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(bench_command, "decide", measures)
    try:
        ended = run("bench", "decide")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (cleaned, ended.exit, "Aborted" in ended.err) == ([True], 1, True)
