"""Runs the sides of a comparison: our cluster, one of each security.mode if several are wanted, Kafka, and the bare
loop."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from spark_replication.admin.bench.bare import Bare
from spark_replication.admin.bench.harness import Harness
from spark_replication.admin.bench.kafka.nodes import kafka_cluster
from spark_replication.admin.bench.kafka.theirs import Theirs
from spark_replication.admin.bench.ours import Ours, our_cluster, settings_of_modes
from spark_replication.admin.bench.side import WHOLE, Target
from spark_replication.admin.bench.traffic import Produce
from spark_replication.config import SecurityMode
from spark_replication.errors import StartFailed
from spark_replication.model import Scalar

Peer = Literal["kafka", "bare"]
PLAIN: tuple[SecurityMode, ...] = ("none",)
#: What makes brokers warm.
WARM_UP = Produce(row_bytes=1 << 10, batch_bytes=64 << 10, partitions=1, producers=1, mib=128)


@contextmanager
def clusters(
    harness: Harness, modes: Sequence[SecurityMode] = PLAIN, config: Mapping[str, Scalar] = WHOLE
) -> Iterator[list[Ours]]:
    """Run a cluster of each of these modes."""
    with ExitStack() as running:
        yield [running.enter_context(start()) for start in _ours(harness, modes, config)]


def _ours(
    harness: Harness, modes: Sequence[SecurityMode], config: Mapping[str, Scalar]
) -> list[Callable[[], AbstractContextManager[Ours]]]:
    return [partial(_cluster, harness, mode, "ours" if len(modes) == 1 else mode, config) for mode in modes]


@contextmanager
def _cluster(harness: Harness, mode: SecurityMode, name: str, config: Mapping[str, Scalar]) -> Iterator[Ours]:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        security = settings_of_modes(Path(directory))[mode]
        harness.progress(f"three brokers start, security.mode={mode}")
        with our_cluster(config, name=name, security=security) as side:
            yield side


@contextmanager
def _kafka(harness: Harness) -> Iterator[Theirs]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        kafka_cluster(Path(directory) / "kafka", harness.progress) as cluster,
    ):
        yield Theirs(cluster)


@contextmanager
def kafka(harness: Harness) -> Iterator[Theirs | None]:
    """Run Kafka. None where it cannot run."""
    with ExitStack() as running:
        try:
            side = running.enter_context(_kafka(harness))
        except StartFailed as error:
            harness.progress(f"Kafka does not run, so there is nothing to compare with: {error.message}")
            yield None
            return
        yield side


@contextmanager
def bare() -> Iterator[Bare]:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, closing(Bare(Path(directory))) as side:
        yield side


@contextmanager
def all_sides(
    harness: Harness, beside: Collection[Peer], modes: Sequence[SecurityMode] = PLAIN
) -> Iterator[list[Target]]:
    """Run ours and its peers, all warm."""
    with ExitStack() as running:
        sides: list[Target] = [*running.enter_context(clusters(harness, modes))]
        if "kafka" in beside and (theirs := running.enter_context(kafka(harness))) is not None:
            sides.append(theirs)
            warm(harness, sides)
        if "bare" in beside:
            sides.append(running.enter_context(bare()))
        yield sides


def starts(
    harness: Harness, beside: Collection[Peer], modes: Sequence[SecurityMode] = PLAIN
) -> list[Callable[[], AbstractContextManager[Target]]]:
    """What starts ours, and each of its peers."""
    peers: Mapping[Peer, Callable[[], AbstractContextManager[Target]]]
    peers = {"kafka": partial(_kafka, harness), "bare": bare}
    return [*_ours(harness, modes, WHOLE), *(peers[each] for each in beside)]


def warm(harness: Harness, sides: Sequence[Target]) -> None:
    for side in sides:
        with WARM_UP.begun(side, harness):
            pass
