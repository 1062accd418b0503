"""The tokens of a file: a line each, `NAME SECRET`, or a secret alone.

A server admits each of them, while the file can be trusted. So a token is replaced like this: the new one is put below
the old one where servers run, then in place of the old one where clients do, and then the old one is removed where
servers run. Nobody restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from spark_replication.errors import InvalidConfig
from spark_replication.process.files import Care, Reread, read_named
from spark_replication.transport.proofs.token import Hello, Side, Token

COMMENT = "#"  # begins a line that is none
OF_A_NAME_MAX = 10  # each is tried with each proof
CHARACTERS_MIN = 16  # who sees one proof can try shorter ones against it until one fits


class Tokens:
    """As the file is now."""

    def __init__(self, read: Reread[tuple[Token, ...]], names: frozenset[str] | None = None) -> None:
        """names: only these principals' tokens. None: all."""
        self._read = read
        self._names = names
        #: These tokens by their marks.
        self._known: tuple[tuple[Token, ...], dict[str, Token]] = ((), {})

    @classmethod
    def of(cls, *tokens: Token) -> Tokens:
        return cls(Reread((), lambda: tokens))

    def only(self, names: frozenset[str]) -> Tokens:
        return Tokens(self._read, names)

    def __reduce__(self) -> NoReturn:
        raise TypeError("tokens stay in their process: hand on the name of its file")

    def __repr__(self) -> str:
        return f"Tokens({', '.join(token.name for token in self.all())}, …)"

    @property
    def own(self) -> Token:
        """What this process proves that it knows, where it is a client. Whether it is good is up to whom that is proven
        to, so a file that cannot be trusted takes nothing away here."""
        self._read.look()
        return self._read.last()[0]

    @property
    def trouble(self) -> str:
        """Why the file cannot be used as it is. Empty if it can."""
        return self._read.trouble

    def all(self) -> tuple[Token, ...]:
        found = self._read.now()
        return found if self._names is None else tuple(token for token in found if token.name in self._names)

    def is_known(self, mark: str) -> bool:
        """Whether the token with this mark is there, or was so a second ago."""
        return self.of_mark(mark) is not None

    def of_mark(self, mark: str) -> Token | None:
        """The token with this mark, if it is there, or was so a second ago."""
        found = self.all()
        known = self._known
        if known[0] is not found:
            known = self._known = found, {token.mark: token for token in found}
        return known[1].get(mark)

    def shown(self, headers: Sequence[str]) -> Token | None:
        """The token that a call came with. headers: see Token.admits."""
        return self._first(lambda token: token.admits(headers))

    def proving(self, name: object, proof: bytes, side: Side, hello: Hello, server_nonce: bytes) -> Token | None:
        """The token of this name whose proof that is."""
        return self._first(lambda token: token.name == name and token.proven(proof, side, hello, server_nonce))

    def _first(self, is_it: Callable[[Token], bool]) -> Token | None:
        """Whoever uses a new token may do so before this process has looked at its file again."""
        found = next(filter(is_it, self.all()), None)
        if found is None and self._read.look():
            found = next(filter(is_it, self.all()), None)
        return found


def read_tokens(setting: str, path: str, name: str) -> Tokens | None:
    """name: the principal of a token that has no name. Raises InvalidConfig."""

    def read() -> tuple[Token, ...]:
        text = read_named(setting, path, Care.SECRET).decode("ascii", errors="replace")
        try:
            return _parsed(text.splitlines(), name)
        except InvalidConfig as error:
            raise InvalidConfig(f"{setting}={path}: {error.message}") from error

    return Tokens(Reread((path,), read, revoked=())) if path else None


def token_of_line(line: str, name: str) -> Token | None:
    """name: the principal of a token that has no name. None if the line is empty, or a comment."""
    words = line.split()
    if not words or words[0].startswith(COMMENT):
        return None
    if len(words) > 2:
        raise InvalidConfig("a line is NAME TOKEN, or TOKEN alone, and one has more words")
    token = Token(words[-1], words[0] if len(words) == 2 else name)
    if len(words[-1]) < CHARACTERS_MIN:
        raise InvalidConfig(
            f"the token of {token.name} has fewer than {CHARACTERS_MIN} characters, and can be guessed: make one "
            'with python3 -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    return token


def _parsed(lines: Iterable[str], name: str) -> tuple[Token, ...]:
    found = [token for line in lines if (token := token_of_line(line, name)) is not None]
    if not found:
        raise InvalidConfig("the token is empty: put a long random text there")
    for each in {token.name for token in found}:
        if sum(token.name == each for token in found) > OF_A_NAME_MAX:
            raise InvalidConfig(f"{each} has more than {OF_A_NAME_MAX} tokens: remove the old ones")
    return tuple(found)
