"""A cluster's file of tokens as it is changed: whole, by one command at a time, and right under any umask."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_replication.errors import InvalidConfig, InvalidRequest
from spark_replication.messages.replication import COST_MIN, SALT_BYTES, Salt
from spark_replication.process.files import Care, changed_alone, read_named, replace_secret
from spark_replication.transport.proofs.token import CLIENT, Token
from spark_replication.transport.proofs.tokens import read_tokens, token_of_line
from spark_replication.transport.proofs.verifier import Known, Verifier

SETTING = "security.token.file"
TOKEN_BYTES = 32


def tokens_in(path: Path) -> list[Known]:
    """In the order of their lines. Raises InvalidConfig as a server would, and UntrustedFile of a file that is not to
    be trusted: what is in it is no secret any longer."""
    found = read_tokens(SETTING, str(path), CLIENT)
    assert found is not None, "it has a path"
    return list(found.all())


def add_token(path: Path, name: str, client_file: Path, *, salted: bool) -> Known:
    """Let this principal in by the token of its own file, too, which is made if it is not there. The token goes below
    all others: who has an earlier one keeps it until that is removed. salted: a verifier of it is there then, and not
    the token itself."""
    with _changing(path):
        if client_file.exists():
            (token, *others) = tokens_in(client_file)
            if others or token.name != name or not isinstance(token, Token):
                raise InvalidRequest(f"{client_file} is to have one line, with a token of {name}: it has another")
        else:
            token = Token(secrets.token_urlsafe(TOKEN_BYTES), name)
            replace_secret(client_file, _line(token))
        lines = _lines(path) if path.exists() else []
        for place, line in enumerate(lines):
            found = token_of_line(line, CLIENT)
            if found is None or not _is_same(found, token):
                continue
            if isinstance(found, Verifier) or not salted:
                return found
            del lines[place]
            break
        added = Verifier.of(token, _salt_of(lines)) if salted else token
        replace_secret(path, "".join([*lines, _line(added)]))
        return added


def salt_tokens(path: Path) -> list[Verifier]:
    """Put a verifier in the place of each token, and return these. All else stays."""
    with _changing(path):
        lines, made = _lines(path), []
        salt = _salt_of(lines)
        for place, line in enumerate(lines):
            token = token_of_line(line, CLIENT)
            if isinstance(token, Token):
                made.append(Verifier.of(token, salt))
                lines[place] = _line(made[-1])
        if not made:
            raise InvalidRequest(f"{path} has no token in the clear: nothing is to be done")
        replace_secret(path, "".join(lines))
        return made


def remove_tokens(path: Path, name: str, *, but_newest: bool) -> list[Known]:
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


def _is(line: str, wanted: Callable[[Known], bool]) -> bool:
    token = token_of_line(line, CLIENT)
    return token is not None and wanted(token)


def _is_same(known: Known, token: Token) -> bool:
    if known.name != token.name:
        return False
    return (Verifier.of(token, known.salt) if isinstance(known, Verifier) else token).mark == known.mark


def _salt_of(lines: Iterable[str]) -> Salt:
    """One for all of a file: see transport.proofs.verifier. The last that is there, since that is the newest."""
    found = [token.salt for line in lines if isinstance(token := token_of_line(line, CLIENT), Verifier)]
    return found[-1] if found else Salt(value=secrets.token_bytes(SALT_BYTES), cost=COST_MIN)


def _line(token: Known) -> str:
    return f"{token.name} {token.text if isinstance(token, Verifier) else token.bearer.split()[-1]}\n"
