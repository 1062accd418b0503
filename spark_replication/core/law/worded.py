"""Settings of the cluster that say many things, each of them in a few words: `alice write topic orders; bob …`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from spark_replication.decoding import UNDECODABLE, from_builtins
from spark_replication.errors import InvalidConfig

CHARACTERS_MAX = 256 << 10  # of such a setting

_BETWEEN = ";"

Said = TypeVar("Said", bound=msgspec.Struct)


class Worded(Generic[Said]):
    def __init__(
        self,
        setting: str,
        kind: type[Said],
        *,
        one: str,
        examples: str,
        instead: str,
        words: Callable[[Sequence[str]], Mapping[str, str]] | None = None,
    ) -> None:
        """one, examples, instead: for errors: what a thing is called, how some look, and what to do if there are too
        many. words: the words of a text by the names of the fields of `kind`; None: they are these, in their order."""
        self._setting = setting
        self._kind = kind
        self._one = one
        self._examples = examples
        self._instead = instead
        names = (*(field.name for field in msgspec.structs.fields(kind)), "more")
        self._words = words or (lambda given: dict(zip(names, given, strict=False)))

    def said(self, text: str) -> frozenset[Said]:
        """Raises InvalidConfig."""
        self._require_room(text)
        return frozenset(self._of(entry) for entry in text.split(_BETWEEN) if entry.strip())

    def each(self, texts: Iterable[str]) -> tuple[Said, ...]:
        """What each of these texts says. Raises InvalidConfig."""
        return tuple(map(self._of, texts))

    def text(self, said: Iterable[Said]) -> str:
        """Raises InvalidConfig if it is too long."""
        text = f"{_BETWEEN} ".join(map(str, sorted(said)))  # type: ignore[type-var]  # they have an order
        self._require_room(text)
        return text

    def _require_room(self, text: str) -> None:
        if len(text) > CHARACTERS_MAX:
            raise InvalidConfig(
                f"{self._setting} has {len(text)} characters, {CHARACTERS_MAX} at most: {self._instead}"
            )

    def _of(self, entry: str) -> Said:
        try:
            return from_builtins(self._words(entry.split()), self._kind, strict=False)
        except UNDECODABLE as error:
            shown = " ".join(entry.split())[:300]
            raise InvalidConfig(f"{shown!r} is no {self._one}, as {self._examples} are: {error}") from error
