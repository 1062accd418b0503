"""What is in a name or in data is shown, and steers no terminal."""

from __future__ import annotations

import json

import pytest

from spark_replication.admin.cli.listing import show, tell_error
from spark_replication.process.logs import harmless, harmless_json

STEERING = ["\x1b[2J", "\x1b]52;c;aGk=\x07", "\x9b31m", "a\rb", "\u202egnp.exe", "\u200bx", "\ufeff"]


@pytest.mark.parametrize("text", STEERING)
def test_a_table_shows_it_and_json_has_it(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(("name",), [[text]], output="table")
    assert not set(text) & set(capsys.readouterr().out) & set("\x1b\x9b\r\x07\u202e\u200b\ufeff")
    show(("name",), [[text]], output="json")
    out = capsys.readouterr().out
    assert not set(out) & set("\x1b\x9b\r\x07\u202e\u200b\ufeff")
    assert json.loads(out) == [{"name": text}]


def test_what_looks_like_markup_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    show(("[red]name[/red]",), [["[link=http://x]a[/link]"], ["[/x]"], [["[b]", "c"]]], output="table")
    out = capsys.readouterr().out
    assert "[link=http://x]a[/link]" in out
    assert "[/x]" in out
    assert "[b], c" in out
    assert "[red]name[/red]" in out


def test_an_error_is_shown_as_it_is_but_for_what_steers(capsys: pytest.CaptureFixture[str]) -> None:
    tell_error("topic '\x1b[2J' is ünknown\nsecond line")
    assert capsys.readouterr().err == "error: topic '\\x1b[2J' is ünknown\nsecond line\n"


def test_what_steers_nothing_stays() -> None:
    assert harmless("orders-0 → 日本 é\n") == "orders-0 → 日本 é\n"
    assert harmless_json('{\n  "a": "é"\n}') == '{\n  "a": "é"\n}'
