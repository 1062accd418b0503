"""A cluster's file of tokens as it is changed: whole, by one command at a time, and right under any umask."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_replication.errors import InvalidConfig, InvalidRequest
from spark_replication.process.files import Care, changed_alone, read_named, replace_secret
from spark_replication.transport.proofs.token import CLIENT, Token
from spark_replication.transport.proofs.tokens import read_tokens, token_of_line

SETTING = "security.token.file"
TOKEN_BYTES = 32


def tokens_in(path: Path) -> list[Token]:
    """In the order of their lines. Raises InvalidConfig as a server would, and UntrustedFile of a file that is not to
    be trusted: what is in it is no secret any longer."""
    found = read_tokens(SETTING, str(path), CLIENT)
    assert found is not None, "it has a path"
    return list(found.all())


def add_token(path: Path, name: str, client_file: Path) -> Token:
    """Let this principal in by the token of its own file, too, which is made if it is not there. The token goes below
    all others: who has an earlier one keeps it until that is removed."""
    with _changing(path):
        if client_file.exists():
            (token, *others) = tokens_in(client_file)
            if others or token.name != name:
                raise InvalidRequest(f"{client_file} is to have one line, with a token of {name}: it has another")
        else:
            token = Token(secrets.token_urlsafe(TOKEN_BYTES), name)
            replace_secret(client_file, _line(token))
        there = _lines(path) if path.exists() else []
        if not any(_is(line, lambda found: found.mark == token.mark) for line in there):
            replace_secret(path, "".join([*there, _line(token)]))
        return token


def remove_tokens(path: Path, name: str, *, but_newest: bool) -> list[Token]:
    """Remove the tokens of this principal, and return them. but_newest: the lowest of them stays."""
    with _changing(path):
        there = _lines(path)
        found = [place for place, line in enumerate(there) if _is(line, lambda token: token.name == name)]
        leaving = found[:-1] if but_newest else found
        if not leaving:
            more = "more than one token" if but_newest else "a token"
            raise InvalidRequest(f"{path} has not {more} of {name}: `spark-replication tokens list` says whose it has")
        stay = [line for place, line in enumerate(there) if place not in leaving]
        if not any(_is(line, lambda _token: True) for line in stay):
            raise InvalidRequest(
                f"that is the last token in {path}, and whoever reads a file without any goes on with what it has read "
                "before: add another first"
            )
        removed = [token for place in leaving if (token := token_of_line(there[place], CLIENT)) is not None]
        replace_secret(path, "".join(stay))
        return removed


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    try:
        with changed_alone(path):
            yield
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be changed, and is as it was: {error}") from error


def _lines(path: Path) -> list[str]:
    """The lines with their ends. Comments are lines, too."""
    tokens_in(path)
    text = read_named(SETTING, str(path), Care.SECRET).decode("ascii", errors="replace")
    return [f"{line}\n" for line in text.splitlines()]


def _is(line: str, wanted: Callable[[Token], bool]) -> bool:
    token = token_of_line(line, CLIENT)
    return token is not None and wanted(token)


def _line(token: Token) -> str:
    return f"{token.name} {token.bearer.split()[-1]}\n"
