"""Several hosts on one machine: each has a network, a host name, processes and files of its own.

A host is a process, the first of its own namespaces: whoever ends it ends all that runs there, and the end of the
process that made the bed ends all hosts. What can be left behind has the bed's name: the next of that name removes it.
Only root may make one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import ClassVar

from spark_replication.process.processes import last_lines

BEDS_MAX = 250
HOSTS_MAX = 200
GATEWAY = 254
READY_S = 20.0
END_S = 10.0
POLL_S = 0.01
WORDS = 40  # lines of a log that tell why a test has failed
NOBODYS_MAC = "02:77:00:00:00:00"
GATEWAYS_MAC = f"02:77:00:00:00:{GATEWAY:02x}"
TUN = Path("/dev/net/tun")
PROGRAMS = ("ip", "nsenter", "setpriv", "unshare")
NAMESPACES = ("--net", "--uts", "--mount", "--pid")
ROOT = Path(__file__).parents[2]


def lacking() -> str:
    """Why no bed can be made here; empty: it can."""
    if os.geteuid() != 0:
        return "needs root: run as root to give each host a network of its own"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)}: install iproute2 and util-linux"
    if subprocess.run(["unshare", *NAMESPACES, "--fork", "true"], capture_output=True, check=False).returncode:
        return "needs namespaces: run where root may unshare network, host name, mounts and pids"
    probe = f"srprobe{os.getpid() % 100_000}"
    if subprocess.run(["ip", "link", "add", probe, "type", "bridge"], capture_output=True, check=False).returncode:
        return "needs bridges: run where root may add a network bridge"
    subprocess.run(["ip", "link", "del", probe], capture_output=True, check=False)
    if not TUN.exists():
        return f"needs {TUN}: run where root may make slow links of it"
    return ""


class Process:
    """One command on a host. pid: as this machine sees it, while it lives; the host has another number for it."""

    def __init__(self, entering: subprocess.Popen[bytes], log: Path) -> None:
        self.log = log
        self._entering = entering

    @cached_property
    def pid(self) -> int:
        return _only_child(self._entering)

    @property
    def returncode(self) -> int | None:
        return self._entering.poll()

    def says(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def terminate(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait(60.0)

    def wait(self, timeout_s: float = END_S) -> int:
        return self._entering.wait(timeout_s)


class Host:
    """Made by a bed. files: its own, as this machine sees them; on the host itself they are at `Bed.files`."""

    def __init__(self, bed: Bed, number: int, name: str) -> None:
        self.name = name
        self.address = bed.address(number)
        self.files = bed.directory / name
        self.device = f"{bed.name}-h{number}"  # this machine's end of its link
        # It keeps this, as a machine that is switched on again does: whoever just spoke with it still knows its address
        # by it, for up to 45 s.
        self.mac = f"02:77:00:00:00:{number:02x}"
        self.number = number
        self._bed = bed
        self._keeping: subprocess.Popen[bytes] | None = None
        self._first = 0
        self._started = 0

    def __repr__(self) -> str:
        return f"Host({self.name}, {self.address})"

    @property
    def runs(self) -> bool:
        return self._keeping is not None

    def start(self) -> None:
        """With the files that it had."""
        assert self._keeping is None, f"{self} runs"
        self.files.mkdir(parents=True, exist_ok=True)
        self._bed.files.mkdir(parents=True, exist_ok=True)
        # The first process reaps what its parent has left behind, as a real host's does: SIGCHLD is ignored.
        as_host = 'mount --bind "$1" "$2" && hostname "$3" && echo up && exec env --ignore-signal=CHLD sleep infinity'
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
        with self._output("power").open("wb") as errors:
            self._keeping = subprocess.Popen(
                [*command, "sh", "-c", as_host, "sh", str(self.files), str(self._bed.files), self.name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert self._keeping.stdout is not None
        assert self._keeping.stdout.readline() == b"up\n", f"{self} does not start"
        self._first = _only_child(self._keeping)
        peer = ("peer", "name", "eth0", "address", self.mac, "netns", str(self._first))
        ip("link", "add", self.device, "type", "veth", *peer)
        ip("link", "set", self.device, "master", self._bed.name, "up")
        self.ip("addr", "add", f"{self.address}/24", "dev", "eth0")
        self.ip("link", "set", "eth0", "up")
        self.ip("link", "set", "lo", "up")

    def run(self, *command: str, environment: Mapping[str, str] = {}) -> Process:
        """In the project's folder. What it writes goes to a file of the bed."""
        self._started += 1
        log = self._output(str(self._started))
        with log.open("wb") as output:
            entering = subprocess.Popen(
                self.within(*command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        return Process(entering, log)

    def processes(self) -> dict[int, bytes]:
        """What runs there, by pid as this machine sees it: the command lines."""
        found = {}
        ours = Path(f"/proc/{self._first}/ns/pid").readlink()
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (path / "ns" / "pid").readlink() == ours:
                    found[int(path.name)] = (path / "cmdline").read_bytes()
        return found

    def _output(self, what: str) -> Path:
        path = self._bed.directory / "output" / f"{self.name}-{what}.log"
        path.parent.mkdir(exist_ok=True)
        return path

    def within(self, *command: str) -> list[str]:
        """The command that runs this one on the host."""
        return ["nsenter", f"--target={self._first}", *NAMESPACES, f"--wdns={ROOT}", "--", *command]

    def kill(self) -> None:
        """As if its power were gone: no process says good-bye, and its files stay."""
        keeping, self._keeping = self._keeping, None
        if keeping is None:
            return
        with suppress(ProcessLookupError):
            os.kill(self._first, signal.SIGKILL)
        keeping.wait(END_S)
        if keeping.stdout is not None:
            keeping.stdout.close()
        # With its network namespace its link goes; but a moment later.
        with suppress(subprocess.CalledProcessError):
            ip("link", "del", self.device)

    def destroy(self) -> None:
        """For good: its files, too. Started again it is another machine at the same address."""
        self.kill()
        shutil.rmtree(self.files)

    def ip(self, *words: str) -> None:
        _run("nsenter", f"--target={self._first}", "--net", "ip", *words)


class Bed:
    """A network, and a host for each name. files: the folder that each host has for itself, at the same path."""

    made: ClassVar[set[Bed]] = set()  # and not closed

    def __init__(self, names: Sequence[str]) -> None:
        assert len(names) <= HOSTS_MAX
        self._held = ExitStack()
        try:
            number = self._held.enter_context(_free_number())
            self.name = f"srbed{number}"
            self._prefix = f"10.77.{number}"
            self.directory = Path(tempfile.gettempdir()) / self.name
            self.files = self.directory / "files"
            self._remove()
            self._held.callback(self._remove)
            self.directory.mkdir()
            Bed.made.add(self)
            self._held.callback(Bed.made.discard, self)
            # An address of its own: else it has that of one of its links, and another each time that one comes or goes,
            # by which all forget their neighbours.
            ip("link", "add", self.name, "address", GATEWAYS_MAC, "type", "bridge")
            self.gateway = self.address(GATEWAY)
            ip("addr", "add", f"{self.gateway}/24", "dev", self.name)
            ip("link", "set", self.name, "up")
            self.hosts = {name: Host(self, place, name) for place, name in enumerate(names, start=1)}
            for host in self.hosts.values():
                self._held.callback(host.kill)
                host.start()
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def __enter__(self) -> Bed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def address(self, number: int) -> str:
        return f"{self._prefix}.{number}"

    def close(self) -> None:
        self._held.close()

    def last_words(self) -> Iterator[tuple[str, str]]:
        """The end of each log, of all hosts."""
        for path in sorted(self.directory.rglob("*.log")):
            with suppress(OSError):
                yield str(path.relative_to(self.directory)), last_lines(path, WORDS)

    def _remove(self) -> None:
        """Whatever has this bed's name."""
        listed = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
        names = [line.split(": ")[1].partition("@")[0] for line in listed.splitlines()]
        for name in names:
            if name == self.name or name.startswith(f"{self.name}-"):
                with suppress(subprocess.CalledProcessError):  # the other end of one that just went
                    ip("link", "del", name)
        shutil.rmtree(self.directory, ignore_errors=True)


@contextmanager
def _free_number() -> Iterator[int]:
    """Ours for as long as we hold its lock: a bed that was killed holds none."""
    for number in range(1, BEDS_MAX + 1):
        path = Path(tempfile.gettempdir()) / f"srbed{number}.lock"
        with path.open("a") as lock, suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield number
            return
    raise AssertionError(f"{BEDS_MAX} beds are in use")


def ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, f"{command}: {done.stderr}")


def _only_child(process: subprocess.Popen[bytes]) -> int:
    path, deadline = Path(f"/proc/{process.pid}/task/{process.pid}/children"), time.monotonic() + READY_S
    while time.monotonic() < deadline:
        with suppress(OSError):
            if children := path.read_text().split():
                return int(children[0])
        if process.poll() is not None:
            break
        time.sleep(POLL_S)
    raise AssertionError(f"{process.args!r} has started nothing: exit {process.returncode}")
