"""Says in time that the certificate of this process ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from spark_replication.transport.security.certificates import Tls

WARN_S = 14 * 24 * 3600.0
AGAIN_S = 24 * 3600.0

log = logging.getLogger(__name__)


class Expiry:
    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._told: tuple[float, float] | None = None  # of which certificate, and when

    def look(self, tls: Tls | None) -> None:
        now_s = self._now_s()
        if tls is None or tls.ends_s is None or tls.ends_s - now_s > WARN_S:
            return
        if self._told is not None and self._told[0] == tls.ends_s and now_s - self._told[1] < AGAIN_S:
            return
        self._told = tls.ends_s, now_s
        left_s = tls.ends_s - now_s
        when = f"ends in {left_s / 86_400:.1f} days" if left_s > 0 else "has ended"
        log.warning("the certificate of this process %s: replace its files, which are read again by themselves", when)
