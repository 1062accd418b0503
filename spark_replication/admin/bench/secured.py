"""Measures acks=all through brokers of each security.mode, and in turn with them through brokers of none.

With `token` each side proves itself as a connection begins, and what follows is as without. With `tls` all bytes are
encrypted, between brokers, too.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import msgspec

from spark_replication.admin.bench.load import latency, rate
from spark_replication.admin.bench.replicate import BATCHES_PER_S, Progress, batch_of, started, streams_to
from spark_replication.config import SecurityMode
from spark_replication.model import Scalar
from spark_replication.process.certificates import ca_in, host_certificate
from spark_replication.process.files import make_secret

HOST = "127.0.0.1"
DAYS = 1


class Secured(msgspec.Struct, frozen=True, kw_only=True):
    batch_bytes: int
    mode: SecurityMode
    #: Medians of the rounds.
    mb_per_s: float
    cpu_s_per_gb: float
    p50_ms: float
    p99_ms: float
    #: Its rate divided by that of none in the same round: the median.
    ratio: float


COLUMNS = Secured.__struct_fields__


def secured(sizes: Sequence[int], *, seconds: float, rounds: int, progress: Progress) -> Iterator[Secured]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        clusters = {}
        for mode, settings in settings_of_modes(directory).items():
            progress(f"security.mode={mode}: three brokers")
            clusters[mode] = stack.enter_context(started(settings))
        for size in sizes:
            with ExitStack() as loads:
                targets = {
                    mode: loads.enter_context(streams_to(cluster, 1, batch_of(size)))
                    for mode, cluster in clusters.items()
                }
                modes = list(targets)
                rates = []
                for number in range(rounds):
                    progress(f"{size} bytes a batch, round {number + 1} of {rounds}")
                    turns = modes if number % 2 == 0 else modes[::-1]
                    rates.append({mode: rate(targets[mode], seconds) for mode in turns})
                for mode in modes:
                    times = latency(targets[mode], seconds, BATCHES_PER_S)
                    yield Secured(
                        batch_bytes=size,
                        mode=mode,
                        mb_per_s=round(median(each[mode].mb_per_s for each in rates), 1),
                        cpu_s_per_gb=round(median(each[mode].cpu_s_per_gb for each in rates), 2),
                        p50_ms=times.p50_ms,
                        p99_ms=times.p99_ms,
                        ratio=round(median(each[mode].mb_per_s / each["none"].mb_per_s for each in rates), 2),
                    )


def settings_of_modes(directory: Path) -> Mapping[SecurityMode, Mapping[str, Scalar]]:
    """What a cluster of each mode is started with. Secrets are made in this directory."""
    token = directory / "token"
    make_secret(token, secrets.token_urlsafe(32))
    ca, (ca_file, _) = ca_in(directory, "a measurement's CA")
    certificate, key = host_certificate(directory, ca, [HOST], DAYS)
    return {
        "none": {},
        "token": {"security.mode": "token", "security.token.file": str(token)},
        "tls": {
            "security.mode": "tls",
            "security.tls.ca.file": str(ca_file),
            "security.tls.certificate.file": str(certificate),
            "security.tls.key.file": str(key),
            "security.tls.mutual": True,
        },
    }
