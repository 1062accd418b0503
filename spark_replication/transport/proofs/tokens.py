"""The tokens of a file: a line each, `NAME SECRET`, or a secret alone; or `NAME VERIFIER` (transport.proofs.verifier).

A server admits each of them, while the file can be trusted. So a token is replaced like this: the new one is put below
the old one where servers run, then in place of the old one where clients do, and then the old one is removed where
servers run. Nobody restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, NoReturn

from spark_replication.errors import InvalidConfig
from spark_replication.messages.replication import SALTS_MAX, Salt
from spark_replication.process.files import Care, Reread, read_named
from spark_replication.transport.proofs.token import TOKEN_BYTES_MAX, Caller, Hello, Proofs, Token, secret_shown
from spark_replication.transport.proofs.verifier import FAMILY, Known, Verifier

COMMENT = "#"  # begins a line that is none
OF_A_NAME_MAX = 10  # each is tried with each proof
CHARACTERS_MIN = 16  # who sees one proof can try shorter ones against it until one fits


class Offered(NamedTuple):
    """What the tokens of a principal can be known by here: see messages.introducing.Challenge."""

    in_clear: bool
    salts: tuple[Salt, ...]


class Tokens:
    """As the file is now."""

    def __init__(self, read: Reread[tuple[Known, ...]], names: frozenset[str] | None = None) -> None:
        """names: only these principals' tokens. None: all."""
        self._read = read
        self._names = names
        #: These tokens by their marks.
        self._known: tuple[tuple[Known, ...], dict[str, Known]] = ((), {})

    @classmethod
    def of(cls, *tokens: Known) -> Tokens:
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
        found = next((token for token in self._read.last() if isinstance(token, Token)), None)
        if found is None:
            raise InvalidConfig(
                "the file of tokens has verifiers alone, by which nobody is let in: where a cluster runs, name a file "
                "with a token as security.session.token.file; elsewhere name that as security.token.file"
            )
        return found

    @property
    def trouble(self) -> str:
        """Why the file cannot be used as it is. Empty if it can."""
        return self._read.trouble

    def all(self) -> tuple[Known, ...]:
        found = self._read.now()
        return found if self._names is None else tuple(token for token in found if token.name in self._names)

    def is_known(self, mark: str) -> bool:
        """Whether the token with this mark is there, or was so a second ago."""
        return self.of_mark(mark) is not None

    def of_mark(self, mark: str) -> Known | None:
        """The token with this mark, if it is there, or was so a second ago."""
        found = self.all()
        known = self._known
        if known[0] is not found:
            known = self._known = found, {token.mark: token for token in found}
        return known[1].get(mark)

    def shown(self, headers: Sequence[str]) -> Known | None:
        """The token that a call came with. headers: see Token.admits. Raises Overloaded: see Roots.tried."""
        secret = secret_shown(headers)
        if secret is None:
            return None
        found = self._first(lambda token: isinstance(token, Token) and token.is_of(secret))
        if found is None and CHARACTERS_MIN <= len(secret) <= TOKEN_BYTES_MAX:  # scrypt's time for those that may be
            found = self._first(lambda token: isinstance(token, Verifier) and token.is_of(secret))
        return found

    def offered(self, name: object) -> Offered:
        """What a token of this name can be known by, as the file is at this moment: the token may be new. A file of one
        kind says to nobody which names it has."""
        self._read.look()
        found = self.all()
        mine = [token for token in found if token.name == name] or found
        salts = dict.fromkeys(token.salt for token in mine if isinstance(token, Verifier))
        return Offered(any(isinstance(token, Token) for token in mine), tuple(salts))

    def proving(
        self,
        name: object,
        proof: bytes,
        side: Caller,
        hello: Hello,
        server_nonce: bytes,
        signatures: tuple[bytes, ...] = (),
    ) -> Known | None:
        """The token of this name whose proof that is, or whose signature one of these."""
        given = Proofs(proof, signatures)
        return self._first(lambda token: token.name == name and token.is_proven_by(given, side, hello, server_nonce))

    def _first(self, is_it: Callable[[Known], bool]) -> Known | None:
        """Whoever uses a new token may do so before this process has looked at its file again."""
        found = next(filter(is_it, self.all()), None)
        if found is None and self._read.look():
            found = next(filter(is_it, self.all()), None)
        return found


def read_tokens(setting: str, path: str, name: str, *, proven_here: bool = False) -> Tokens | None:
    """name: the principal of a token that has no name. proven_here: this process proves these tokens, and needs them
    themselves. Raises InvalidConfig."""

    def read() -> tuple[Known, ...]:
        text = read_named(setting, path, Care.SECRET).decode("ascii", errors="replace")
        try:
            found = _parsed(text.splitlines(), name)
            if proven_here and any(isinstance(token, Verifier) for token in found):
                raise InvalidConfig("a verifier is there, and who proves this secret needs the token itself")
            return found
        except InvalidConfig as error:
            raise InvalidConfig(f"{setting}={path}: {error.message}") from error

    return Tokens(Reread((path,), read, revoked=())) if path else None


def token_of_line(line: str, name: str) -> Known | None:
    """name: the principal of a token that has no name. None if the line is empty, or a comment."""
    words = line.split()
    if not words or words[0].startswith(COMMENT):
        return None
    if len(words) > 2:
        raise InvalidConfig("a line is NAME TOKEN, or TOKEN alone, and one has more words")
    name = words[0] if len(words) == 2 else name
    if words[-1].startswith(FAMILY):
        return Verifier.read(name, words[-1])
    token = Token(words[-1], name)
    if len(words[-1]) < CHARACTERS_MIN:
        raise InvalidConfig(
            f"the token of {token.name} has fewer than {CHARACTERS_MIN} characters, and can be guessed: make one "
            'with python3 -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    return token


def _parsed(lines: Iterable[str], name: str) -> tuple[Known, ...]:
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            token = token_of_line(line, name)
        except InvalidConfig as error:
            raise InvalidConfig(f"line {number}: {error.message}") from error
        if token is not None:
            found.append(token)
    if not found:
        raise InvalidConfig("the token is empty: put a long random text there")
    for each in {token.name for token in found}:
        if sum(token.name == each for token in found) > OF_A_NAME_MAX:
            raise InvalidConfig(f"{each} has more than {OF_A_NAME_MAX} tokens: remove the old ones")
    if len({token.salt for token in found if isinstance(token, Verifier)}) > SALTS_MAX:
        raise InvalidConfig(f"there are verifiers with more than {SALTS_MAX} salts: make them anew, with one")
    return tuple(found)
