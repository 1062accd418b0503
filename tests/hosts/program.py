"""What the programs over a bed of hosts share: what they say, and what their end says to a shell."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from spark_replication.errors import ReplicationError
from tests.hosts.bed import Bed, lacking


def say(text: str) -> None:
    with suppress(BrokenPipeError):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


@contextmanager
def told_bed(hosts: Sequence[str]) -> Iterator[Bed]:
    """With a failure goes what each process said last: its files go with the bed."""
    with Bed(hosts) as bed:
        try:
            yield bed
        except BaseException:
            for name, words in bed.last_words():
                say(f"---- {name}\n{words}")
            raise


def carried_out(what: str, run: Callable[[], None]) -> int:
    """The exit code. what: says how to run it again."""
    if missing := lacking():
        sys.stderr.write(f"{missing}\n")
        return 1
    say(what)
    try:
        run()
    except (AssertionError, ReplicationError) as error:
        say(f"{what}: {error}")
        return 1
    return 0
