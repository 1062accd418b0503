"""A file that changes is read again, once. What cannot be read leaves everything as it was, and what cannot be trusted
takes it away."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from spark_replication.errors import InvalidConfig
from spark_replication.process import files
from spark_replication.process.files import Care, Reread, read_named


class Number:
    """A file with a number in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reads = 0
        path.write_text("1")

    def read(self) -> int:
        self.reads += 1
        try:
            return int(self.path.read_text())
        except (OSError, ValueError) as error:
            raise InvalidConfig(f"{self.path} is no number") from error


@pytest.fixture
def number(tmp_path: Path) -> Number:
    return Number(tmp_path / "number")


def test_a_file_that_does_not_change_is_read_once(number: Number) -> None:
    read = Reread([str(number.path)], number.read)
    assert [read.look() for _ in range(3)] == [False] * 3
    assert read.now() == 1
    assert number.reads == 1


def test_a_change_is_seen_at_once_by_a_look_and_else_in_time(number: Number, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Reread([str(number.path)], number.read)
    number.path.write_text("22")
    assert read.now() == 1, "within LOOK_S nobody looks"
    assert read.look()
    assert read.now() == 22
    monkeypatch.setattr(files, "LOOK_S", 0.0)
    number.path.unlink()
    number.path.write_text("33")  # another file of the same size
    assert read.now() == 33
    assert number.reads == 3


@pytest.mark.parametrize("content", [None, "nothing"])
def test_what_cannot_be_read_leaves_what_was(
    number: Number, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    read = Reread([str(number.path)], number.read)
    number.path.unlink()
    if content is not None:
        number.path.write_text(content)
    with caplog.at_level(logging.WARNING):
        assert [read.look() for _ in range(3)] == [False] * 3
    assert read.now() == 1
    assert len(caplog.records) == 1, "it is told once, and not at each look"
    number.path.write_text("4")
    assert read.look()
    assert read.now() == 4


def test_the_first_read_must_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig):
        Reread([str(tmp_path / "none")], _fails)


def _fails() -> int:
    raise InvalidConfig("there is none")


def test_threads_that_look_at_once_read_once(number: Number) -> None:
    read = Reread([str(number.path)], number.read)
    number.path.write_text("55")
    together = threading.Barrier(8)

    def look() -> None:
        together.wait(5)
        read.look()

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert read.now() == 55
    assert number.reads == 2


class Secret:
    """A file that is to be a secret, and what is read of it. Times are told by hand."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, *, revoked: bytes | None = b"") -> None:
        self.path = path
        path.touch(mode=0o600)
        path.write_text("old")
        self.now_s = 0.0
        monkeypatch.setattr("spark_replication.process.files.time.monotonic", lambda: self.now_s)
        self._read = Reread([str(path)], lambda: read_named("a.setting", str(path), Care.SECRET), revoked=revoked)

    def at(self, now_s: float) -> tuple[bytes, bytes]:
        """What holds then, and what was read last."""
        self.now_s = now_s
        return self._read.now(), self._read.last()

    @property
    def trouble(self) -> str:
        return self._read.trouble


def test_what_cannot_be_trusted_takes_away_what_it_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret(tmp_path / "secret", monkeypatch)
    assert secret.trouble == ""
    secret.path.chmod(0o644)
    assert secret.at(2) == (b"old", b"old")
    assert secret.trouble.endswith(f"o-rwx {secret.path}: whom it let in before is refused 10 s after that was seen")
    assert secret.at(2 + files.UNTRUSTED_S - 0.1) == (b"old", b"old")
    assert secret.at(2 + files.UNTRUSTED_S + files.LOOK_S) == (b"", b"old")
    assert secret.trouble.endswith("whom it let in before is refused")
    secret.path.unlink()
    assert secret.at(30) == (b"", b"old"), "what is gone is not to be trusted either"
    secret.path.touch(mode=0o600)
    secret.path.write_text("new")
    assert secret.at(32) == (b"new", b"new")
    assert secret.trouble == ""
    secret.path.chmod(0o644)
    assert secret.at(34) == (b"new", b"new"), "it has its time anew"


def test_the_mode_alone_makes_it_good_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the log advises: of a file that chmod has changed, the time of its content is what it was."""
    secret = Secret(tmp_path / "secret", monkeypatch)
    secret.path.write_text("new")
    secret.path.chmod(0o644)
    assert secret.at(2) == (b"old", b"old")
    secret.path.chmod(0o600)
    assert secret.at(4) == (b"new", b"new")


def test_a_change_of_the_mode_alone_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_text("old")
    read = Reread([str(path)], lambda: read_named("a.setting", str(path), Care.SECRET))
    path.chmod(0o640)
    assert read.look()
    assert not read.look()


def test_what_lets_nobody_in_holds_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret(tmp_path / "secret", monkeypatch, revoked=None)
    secret.path.chmod(0o644)
    assert [secret.at(now_s)[0] for now_s in (2, 2 + files.UNTRUSTED_S + files.LOOK_S)] == [b"old", b"old"]
    assert secret.trouble.endswith("what was read before holds on")


def test_a_mistake_takes_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret(tmp_path / "secret", monkeypatch)
    secret.path.write_text("")
    assert secret.at(2)[0] == b"old"
    assert secret.at(3 + files.UNTRUSTED_S)[0] == b"old"
    assert secret.trouble.endswith("is empty: what was read before holds on")
