"""When a certificate ends, and who says so of this process's in time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

WARN_S = 14 * 24 * 3600.0
AGAIN_S = 24 * 3600.0

log = logging.getLogger(__name__)


def ends_s(chain: bytes) -> float:
    """When the first certificate of a chain in PEM ends, in seconds since the epoch."""
    from cryptography import x509  # loading it takes a sixth of what a broker's start takes: only with TLS

    return x509.load_pem_x509_certificate(chain).not_valid_after_utc.timestamp()


class Ending(Protocol):
    """The TLS of a process."""

    @property
    def ends_s(self) -> float | None: ...


class Expiry:
    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._told: tuple[float, float] | None = None  # of which certificate, and when

    def look(self, tls: Ending | None) -> None:
        now_s = self._now_s()
        if tls is None or tls.ends_s is None or tls.ends_s - now_s > WARN_S:
            return
        if self._told is not None and self._told[0] == tls.ends_s and now_s - self._told[1] < AGAIN_S:
            return
        self._told = tls.ends_s, now_s
        left_s = tls.ends_s - now_s
        when = f"ends in {left_s / 86_400:.1f} days" if left_s > 0 else "has ended"
        log.warning("the certificate of this process %s: replace its files, which are read again by themselves", when)
