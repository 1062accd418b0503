"""Messages between named places: delayed, reordered, lost, and cut off from each other, one way or both."""

from __future__ import annotations

from collections.abc import Callable

from spark_replication.sim.world.world import Action, Process, World

DELAY_MS = (1, 4)
LATE_MS = (20, 160)


class Network:
    def __init__(self, world: World) -> None:
        self._world = world
        #: The probability that a message is lost.
        self.loss = 0.0
        #: The probability that a message is late.
        self.late = 0.0
        #: Whether nothing is lost, late or cut off any more.
        self.is_healed = False
        #: Pairs (from, to) between which nothing arrives.
        self.cut: set[tuple[str, str]] = set()
        self._held: tuple[str, int, Callable[[str], None]] | None = None

    def hold_next(self, what: str, for_ms: int, then: Callable[[str], None]) -> None:
        """Delay the next message of this kind by `for_ms`. `then` is called with its sender."""
        self._held = what, for_ms, then

    def heal(self) -> None:
        self.is_healed = True
        self._held = None
        self.loss = self.late = 0.0
        self.cut.clear()

    def lost(self, source: str, target: str) -> bool:
        if (source, target) in self.cut:
            self._world.counts["partition"] += 1
            return True
        if self.loss and self._world.chance(self.loss):
            self._world.counts["message_loss"] += 1
            return True
        return False

    def delay_ms(self) -> int:
        if self.late and self._world.chance(self.late):
            self._world.counts["delay"] += 1
            return self._world.between(*LATE_MS)
        return self._world.between(*DELAY_MS)

    def send(self, source: str, target: str, what: str, action: Action, *, to: Process, about: object = "") -> bool:
        """Send a message on its own, which may overtake others. False if it will not arrive."""
        if self.lost(source, target):
            self._world.note(f"lost: {what} from {source} to {target} {about}")
            return False
        delay_ms = self.delay_ms()
        if self._held is not None and self._held[0] == what:
            _, for_ms, then = self._held
            self._held = None
            delay_ms += for_ms
            then(source)
        self._world.after(delay_ms, what, action, on=to, about=about)
        return True


class Stream:
    """One direction of a connection: messages arrive in the order in which they were sent, or the connection breaks."""

    def __init__(self, world: World, network: Network, source: str, target: str, to: Process) -> None:
        self._world = world
        self._network = network
        self._source, self._target, self._to = source, target, to
        self._last_ms = 0

    def send(self, what: str, action: Action, about: object = "") -> bool:
        """Send a message. False if it will not arrive: the connection is broken."""
        if self._network.lost(self._source, self._target):
            self._world.note(f"lost: {what} from {self._source} to {self._target} {about}")
            return False
        at_ms = max(self._world.now_ms + self._network.delay_ms(), self._last_ms)
        self._last_ms = at_ms
        self._world.after(at_ms - self._world.now_ms, what, action, on=self._to, about=about)
        return True
