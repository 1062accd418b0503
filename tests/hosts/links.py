"""What can be wrong with the network between hosts, and how it is mended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

from tests.hosts.bed import NOBODYS_MAC, READY_S, ROOT, Bed, Host, ip

Node = Host | Bed  # a bed stands for this machine, whose clients are beyond every host


class Links:
    """Of one bed. Each fault lasts until it is mended."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self._dropped: set[tuple[str, str]] = set()
        self._unplugged: set[Host] = set()
        self._slow: dict[Host, subprocess.Popen[bytes]] = {}

    def unplug(self, host: Host) -> None:
        """Its system notices: what it sends is refused or waits, and nothing arrives."""
        ip("link", "set", host.device, "down")
        self._unplugged.add(host)

    def plug_in(self, host: Host) -> None:
        ip("link", "set", host.device, "up")
        self._unplugged.discard(host)

    def drop(self, source: Node, target: Node) -> None:
        """Silently, all that source sends to target: it goes to a network card that nobody has."""
        self._on(source, "neigh", "replace", _address(target), "lladdr", NOBODYS_MAC, "dev", _device(source))
        self._dropped.add((_name(source), _name(target)))

    def deliver(self, source: Node, target: Node) -> None:
        self._on(source, "neigh", "del", _address(target), "dev", _device(source))
        self._dropped.discard((_name(source), _name(target)))

    def part(self, one: Node, other: Node) -> None:
        """Both ways, silently."""
        self.drop(one, other)
        self.drop(other, one)

    def join(self, one: Node, other: Node) -> None:
        self.deliver(one, other)
        self.deliver(other, one)

    def isolate(self, host: Host) -> None:
        """From all others and from this machine, silently."""
        for other in self._others(host):
            self.part(host, other)

    def slow(self, host: Host, *, delay_ms: int, loss_percent: float, seed: int) -> None:
        """Each frame, either way, comes so much later, or not at all."""
        near, far, apart = (f"{self._bed.name}-{kind}{host.number}" for kind in "nfb")
        relay = [sys.executable, "-m", "tests.hosts.slow_link", near, far, str(delay_ms), str(loss_percent), str(seed)]
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *relay], cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True
        )
        self._slow[host] = process
        assert process.stdout is not None
        assert process.stdout.readline() == b"relays\n", f"the slow link of {host} did not start"
        ip("link", "add", apart, "type", "bridge")
        ip("link", "set", near, "master", apart, "up")
        ip("link", "set", far, "master", self._bed.name, "up")
        ip("link", "set", apart, "up")
        ip("link", "set", host.device, "master", apart)

    def speed_up(self, host: Host) -> None:
        process = self._slow.pop(host)
        if host.runs:
            ip("link", "set", host.device, "master", self._bed.name)
        process.kill()  # its two devices go with it
        process.wait(READY_S)
        if process.stdout is not None:
            process.stdout.close()
        ip("link", "del", f"{self._bed.name}-b{host.number}")

    def mend(self) -> None:
        """All that is wrong."""
        nodes: dict[str, Node] = {**self._bed.hosts, self._bed.name: self._bed}
        for source, target in sorted(self._dropped):
            self.deliver(nodes[source], nodes[target])
        for host in sorted(self._unplugged, key=_name):
            self.plug_in(host)
        for host in sorted(self._slow, key=_name):
            self.speed_up(host)

    def forget(self, host: Host) -> None:
        """Of one that was killed: what was wrong with its own side went with it."""
        self._dropped = {(source, target) for source, target in self._dropped if source != host.name}
        self._unplugged.discard(host)

    def _others(self, host: Host) -> Iterable[Node]:
        return [*(other for other in self._bed.hosts.values() if other is not host and other.runs), self._bed]

    def _on(self, node: Node, *words: str) -> None:
        if isinstance(node, Bed):
            ip(*words)
        else:
            node.ip(*words)


def _address(node: Node) -> str:
    return node.gateway if isinstance(node, Bed) else node.address


def _device(node: Node) -> str:
    return node.name if isinstance(node, Bed) else "eth0"


def _name(node: Node) -> str:
    return node.name
