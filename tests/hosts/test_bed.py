"""The bed itself: hosts that are apart in what counts, links that fail as they are told to, and nothing left behind."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.hosts.bed import END_S, ROOT, Bed, Host
from tests.hosts.links import Links
from tests.waiting import eventually

PORT = 4_000
SOON_S = 1.0
# Answers with what it got, and says its name first.
ECHO = f"""
import socket, sys, threading
with socket.create_server((sys.argv[1], {PORT})) as server:
    def echo(peer):
        peer.sendall(socket.gethostname().encode() + b"\\n")
        while data := peer.recv(1000):
            peer.sendall(data)
    while True:
        threading.Thread(target=echo, args=(server.accept()[0],), daemon=True).start()
"""


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with Bed(["one", "other"]) as bed:
        for host in bed.hosts.values():
            host.run(sys.executable, "-c", ECHO, host.address)
        for host in bed.hosts.values():
            eventually(lambda host=host: greeted(host), f"{host} answers")  # type: ignore[misc]
        yield bed


@pytest.fixture
def links(bed: Bed) -> Iterator[Links]:
    links = Links(bed)
    yield links
    links.mend()


def greeted(host: Host) -> bool:
    with suppress(OSError), closing(dialled(host)) as peer:
        return peer.recv(100).decode().strip() == host.name
    return False


def dialled(host: Host) -> socket.socket:
    return socket.create_connection((host.address, PORT), timeout=SOON_S)


def between(source: Host, target: Host) -> bool:
    """Whether one host reaches the other."""
    asking = f"import socket; socket.create_connection(({target.address!r}, {PORT}), {SOON_S}).recv(10)"
    return source.run(sys.executable, "-c", asking).wait() == 0


def test_each_host_has_a_name_files_and_processes_of_its_own(bed: Bed) -> None:
    for host in bed.hosts.values():
        (host.files / "whose").write_text(host.name)
        told = host.run("sh", "-c", f"hostname && cat {bed.files}/whose && echo && ls -d /proc/[0-9]* | wc -l")
        assert told.wait() == 0
        name, whose, processes = told.says().split()
        assert (name, whose) == (host.name, host.name)
        assert int(processes) < 10, "not those of this machine"


def test_a_lost_frame_is_lost_in_one_direction_alone(bed: Bed, links: Links) -> None:
    one, other = bed["one"], bed["other"]
    with closing(dialled(one)) as peer:
        assert peer.recv(100) == b"one\n"
        links.drop(one, bed)
        peer.sendall(b"half open")
        with pytest.raises(TimeoutError):
            peer.recv(100)
        assert between(one, other)
        links.deliver(one, bed)
        peer.settimeout(END_S)
        assert peer.recv(100) == b"half open", "TCP tries again"
    links.drop(one, other)
    assert not between(one, other)
    assert greeted(one)
    assert greeted(other)


@pytest.mark.parametrize("silently", [True, False], ids=["silently", "unplugged"])
def test_a_host_that_is_cut_off_reaches_nobody_until_it_is_mended(bed: Bed, links: Links, silently: bool) -> None:
    one, other = bed["one"], bed["other"]
    if silently:
        links.isolate(one)
    else:
        links.unplug(one)
    assert not greeted(one)
    assert not between(one, other)
    assert not between(other, one)
    assert greeted(other)
    links.mend()
    eventually(lambda: greeted(one) and between(one, other) and between(other, one), "all is well")


def test_a_slow_link_takes_its_time_and_loses_frames(bed: Bed, links: Links) -> None:
    one = bed["one"]
    with closing(dialled(one)) as peer:
        peer.recv(100)
        links.slow(one, delay_ms=50, loss_percent=0, seed=1)
        began = time.monotonic()
        peer.sendall(b"slow")
        assert peer.recv(100) == b"slow"
        assert time.monotonic() - began >= 0.1, "there and back"
        links.speed_up(one)
        links.slow(one, delay_ms=0, loss_percent=100, seed=1)
        peer.sendall(b"lost")
        with pytest.raises(TimeoutError):
            peer.recv(100)
        links.speed_up(one)
        peer.settimeout(END_S)
        assert peer.recv(100) == b"lost"


def test_a_host_without_power_ends_all_of_its_processes_and_keeps_its_files(bed: Bed) -> None:
    other = bed["other"]
    (other.files / "kept").write_text("kept")
    outliving = other.run("setsid", "sh", "-c", "echo runs && exec sleep 600")
    eventually(lambda: "runs" in outliving.says(), "it runs")
    eventually(lambda: greeted(other), "it answers, so that its neighbours know it")
    other.kill()
    assert outliving.wait() == -signal.SIGKILL
    assert not greeted(other)
    other.start()
    assert (other.files / "kept").exists()
    other.destroy()
    other.start()
    assert not (other.files / "kept").exists()
    other.run(sys.executable, "-c", ECHO, other.address)
    eventually(lambda: greeted(other), "it answers again at once", 5.0)


def test_of_a_run_that_was_killed_the_next_leaves_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made"
    making = f"""
import time
from pathlib import Path
from tests.hosts.bed import Bed
from tests.waiting import eventually
bed = Bed(["one"])
sleeping = bed["one"].run("sleep", "600")
Path({str(made)!r}).write_text(f"{{bed.name}} {{sleeping.pid}}")
time.sleep(600)
"""
    killed = subprocess.Popen([sys.executable, "-c", making], cwd=ROOT)
    eventually(lambda: made.exists() and made.read_text(), "a bed is made")
    name, pid = made.read_text().split()
    killed.kill()
    killed.wait(END_S)
    eventually(lambda: not Path(f"/proc/{pid}").exists(), "what ran on its host has ended", END_S)
    assert name in devices(), "its bridge is left"
    with Bed(["one"]) as bed:
        assert bed.name == name, "the first that nobody holds"
    assert name not in devices()
    assert not bed.directory.exists()


def devices() -> str:
    return subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("within", "missing"),
    [
        (["setpriv", "--reuid=65534", "--clear-groups"], "needs root: run as root"),
        (["env", "PATH=/nonexistent"], "needs ip, nsenter, setpriv, unshare: install"),
        (["unshare", "--user", "--map-root-user"], "needs bridges: run where"),
        ([], ""),
    ],
    ids=["no root", "no programs", "no rights", "all"],
)
def test_where_no_bed_can_be_made_it_is_said_what_is_missing(within: list[str], missing: str) -> None:
    asked = [*within, sys.executable, "-c", "from tests.hosts.bed import lacking; print(lacking())"]
    told = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert told.startswith(missing)
    assert bool(told) == bool(missing)
