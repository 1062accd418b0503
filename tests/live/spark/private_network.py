"""A host of a test's own: its processes reach this machine by the addresses of one network, and not by loopback.

Only root may make it, by `ip` of iproute2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress

# Of the test's own host, in each network.
OTHER = 1


def can_be_made() -> bool:
    return os.geteuid() == 0 and shutil.which("ip") is not None


class PrivateNetwork:
    """From its construction to `close`. here: this machine's addresses in it."""

    def __init__(self, addresses: int) -> None:
        pid = os.getpid()
        self.name = f"sr-{pid}"
        self._link = f"sr{pid}"
        # Of networks that tests make for themselves; another process of tests has another.
        prefix = f"10.78.{pid % 256}"
        self.here = [f"{prefix}.{254 - number}" for number in range(addresses)]
        try:
            _ip("netns", "add", self.name)
            _ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
            for address in self.here:
                _ip("addr", "add", f"{address}/24", "dev", self._link)
            _ip("link", "set", self._link, "up")
            _ip("-n", self.name, "addr", "add", f"{prefix}.{OTHER}/24", "dev", "eth0")
            _ip("-n", self.name, "link", "set", "eth0", "up")
            _ip("-n", self.name, "link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    def within(self, *command: str) -> list[str]:
        """The command that runs this one on the other host, and becomes it."""
        return ["ip", "netns", "exec", self.name, *command]

    def close(self) -> None:
        for gone in (("link", "del", self._link), ("netns", "del", self.name)):
            with suppress(subprocess.CalledProcessError):
                _ip(*gone)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
