"""Who is taken out of a cluster's files is out: in each mode, under load, whatever the umask was, and on what is open
already. Who stays notices nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyarrow import flight

import spark_replication as sr
from spark_replication.errors import AuthenticationFailed, BrokerNotAvailable, ReplicationError, RequestTimedOut
from spark_replication.messages.envelope import from_json, to_json
from spark_replication.messages.records import BatchPosition, ReadTicket
from spark_replication.messages.replication import COST_MIN, Salt
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.proofs.verifier import Verifier
from tests.live.cluster.history import PAUSE_S
from tests.live.cluster.test_rotation import CONFIG, DEADLINE_S, Pki, Work, put, started
from tests.unit.transport.certificates import Authority, tls_settings
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

SCHEMA = pa.schema([("number", pa.int64())])
BATCH = pa.record_batch([pa.array([1])], schema=SCHEMA)
NAMES = ("root", "alice", "mallory")
UNREACHED = (AuthenticationFailed, BrokerNotAvailable, RequestTimedOut)
OUT_MS = 2_000  # as the guide promises
WAIT_MS = 300_000  # longer than a test
SALT = Salt(value=b"s" * 16, cost=COST_MIN)


class Guarded:
    """A cluster that lets in whose token its file has."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "tokens"
        self.own = {name: directory / name for name in NAMES}
        lines = {name: f"{name} the-secret-of-{name}\n" for name in NAMES}
        for path, text in ((self.file, "".join(lines.values())), *((self.own[name], lines[name]) for name in NAMES)):
            path.touch(mode=0o600)
            path.write_text(text)
        settings = {**CONFIG, "security.mode": "token", "security.token.file": str(self.file)}
        self.cluster = sr.LocalCluster.start(brokers=2, directory=directory / "cluster", config=settings)
        self.cluster.admin.create_topic("orders", SCHEMA, replication_factor=2)

    def security(self, name: str) -> dict[str, Any]:
        return {"security.mode": "token", "security.token.file": str(self.own[name])}

    def producer(self, name: str) -> sr.Producer:
        return sr.Producer(self.cluster.bootstrap, security=self.security(name), deadline_ms=3_000)

    def told(self) -> set[str]:
        """Which processes cannot use their files, as people are told."""
        words = " cannot use its files of secrets as they are"
        return {each.partition(words)[0] for each in self.cluster.problems() if words in each}

    def command(self, *words: object) -> subprocess.CompletedProcess[str]:
        root = self.security("root")
        options = ("-b", self.cluster.bootstrap, *(word for item in root.items() for word in ("--set", "=".join(item))))
        line = [sys.executable, "-m", "spark_replication", "tokens", *map(str, words), *options]
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=DEADLINE_S * 2)


@pytest.fixture
def guarded(tmp_path: Path) -> Any:
    found = Guarded(tmp_path)
    yield found
    found.cluster.stop()


def is_in(producer: sr.Producer) -> bool:
    return producer.send("orders", BATCH, 0).exception(DEADLINE_S) is None


def is_out(*producers: sr.Producer) -> Callable[[], bool]:
    return lambda: not any(is_in(each) for each in producers)


def test_a_removal_with_a_careless_umask_is_told_and_lets_nobody_stay(guarded: Guarded) -> None:
    """`grep -v mallory tokens > new; mv new tokens`, and then what the log advises."""
    with guarded.producer("mallory") as mallory, guarded.producer("alice") as alice:
        assert is_in(mallory)
        assert is_in(alice)
        made = guarded.file.with_name("new")
        made.write_text("".join(f"{name} the-secret-of-{name}\n" for name in ("root", "alice")))
        made.chmod(0o644)
        made.rename(guarded.file)
        expected = {"the controller", "broker 1", "broker 2"}
        eventually(lambda: guarded.told() == expected, "people are told of each process", DEADLINE_S)
        assert guarded.cluster.admin.health().verdict == "critical"
        eventually(is_out(mallory, alice), "nobody is let in by a file that anybody could read", DEADLINE_S)
        with (
            pytest.raises(ReplicationError),
            sr.Admin(guarded.cluster.bootstrap, security=guarded.security("mallory"), deadline_ms=3_000) as admin,
        ):
            admin.create_topic("of-mallory", SCHEMA)
        guarded.file.chmod(0o600)
        eventually(lambda: is_in(alice), "the mode alone makes it good again", DEADLINE_S)
        assert not is_in(mallory)
        eventually(lambda: guarded.told() == set(), "and nothing is left to tell", DEADLINE_S)


@pytest.mark.parametrize("salted", [False, True])
def test_the_command_says_when_a_removal_holds(guarded: Guarded, *, salted: bool) -> None:
    if salted:
        done = guarded.command("salt", guarded.file)
        assert (done.returncode, done.stdout) == (0, "holds everywhere: controller, broker 1, broker 2\n")
        assert "the-secret" not in guarded.file.read_text()
    with guarded.producer("mallory") as mallory, guarded.producer("alice") as alice:
        assert is_in(mallory)
        removed = guarded.command("remove", guarded.file, "mallory")
        assert (removed.returncode, removed.stderr) == (0, "")
        assert removed.stdout == "holds everywhere: controller, broker 1, broker 2\n"
        assert not is_in(mallory), "from then on, on the connection that was open, too"
        assert is_in(alice)
        added = guarded.command(
            "add", guarded.file, "mallory", "--client-file", guarded.own["mallory"], *["--salted"] * salted
        )
        assert (added.returncode, added.stdout) == (0, "holds everywhere: controller, broker 1, broker 2\n")
        assert is_in(mallory)


# Under load, in each mode


class Door(NamedTuple):
    """What lets two clients in, and what takes it from one of them."""

    serving: dict[str, Any]
    staying: dict[str, Any]
    leaving: dict[str, Any]
    take_back: Callable[[], object]
    #: What our clients say to who has left. A Flight server says of a certificate that it does not trust as little as
    #: of one that is not there.
    refusals: tuple[type[ReplicationError], ...] = (AuthenticationFailed,)


def salted_line(name: str) -> str:
    return f"{name} {Verifier.of(Token(f'the-secret-of-{name}', name), SALT).text}\n"


def by_token(directory: Path, mode: str, *, salted: bool = False) -> Door:
    lines = {name: f"{name} the-secret-of-{name}\n" for name in ("alice", "mallory")}
    served = {name: salted_line(name) if salted else line for name, line in lines.items()}
    for name, content in {"served": "".join(served.values()), **lines}.items():
        put(directory / name, content)
    ours = Authority(directory)

    def of(name: str) -> dict[str, Any]:
        tls = tls_settings(ours, ours.issue("server") if name == "served" else None) if mode == "tls" else {}
        return {**tls, "security.mode": mode, "security.token.file": str(directory / name)}

    return Door(of("served"), of("alice"), of("mallory"), lambda: put(directory / "served", served["alice"]))


def by_certificate(directory: Path) -> Door:
    """The CA of one of them is to go. All others have certificates of the new one already."""
    pki = Pki(directory)
    pki.trust(pki.old, pki.new)
    for party in pki.parties:
        pki.show(party, pki.new)
    theirs = tls_settings(pki.old, pki.old.issue("mallory"), mutual=True)
    leaving = {**theirs, "security.tls.ca.file": str(pki.new.file)}
    return Door(pki.settings("server"), pki.settings("client"), leaving, lambda: pki.trust(pki.new), UNREACHED)


DOORS: dict[str, Callable[[Path], Door]] = {
    "token": lambda directory: by_token(directory, "token"),
    "tls": lambda directory: by_token(directory, "tls"),
    "salted token": lambda directory: by_token(directory, "token", salted=True),
    "mutual tls": by_certificate,
}


class Leaver:
    """A producer and a reader of ours, a write and a read of Flight, and one that commands: each is open, and at work
    until it is refused."""

    def __init__(self, cluster: sr.LocalCluster, leader: str, settings: dict[str, Any]) -> None:
        self._bootstrap = cluster.bootstrap
        self._leader = leader
        self._security = sr.Security.of(settings)
        self._over = threading.Event()
        #: How often each has had its way.
        self.rounds: defaultdict[str, int] = defaultdict(int)
        #: Of each reader: when the leader appended the newest batch that it was given.
        self.newest_ms: defaultdict[str, int] = defaultdict(int)
        self.ended: dict[str, Exception] = {}
        #: What writes puts a number of its own into its rows.
        self.numbers = {"producer": 2, "flight write": 3}
        works = {
            "producer": self._produce,
            "reader": self._read,
            "flight write": self._put,
            "flight read": self._get,
            "admin": self._command,
        }
        self._workers = [threading.Thread(target=self._run, args=each, daemon=True) for each in works.items()]

    def __enter__(self) -> Leaver:
        for worker in self._workers:
            worker.start()
        eventually(lambda: self.ended or len(self.rounds) == len(self._workers), "all of it is open", DEADLINE_S)
        assert self.ended == {}
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    @property
    def is_out(self) -> bool:
        return len(self.ended) == len(self._workers)

    def _run(self, name: str, work: Callable[[], Iterator[int]]) -> None:
        try:
            for appended_ms in work():
                self.newest_ms[name] = max(self.newest_ms[name], appended_ms)
                self.rounds[name] += 1
                if self._over.wait(PAUSE_S):
                    return
        except (ReplicationError, flight.FlightError, pa.ArrowException, OSError, EOFError, StopIteration) as error:
            self.ended[name] = error

    def _produce(self) -> Iterator[int]:
        with sr.Producer(self._bootstrap, security=self._security, deadline_ms=5_000) as producer:
            while True:
                producer.send("orders", self._row("producer"), 0).result(DEADLINE_S)
                yield 0

    def _read(self) -> Iterator[int]:
        with sr.Reader(self._bootstrap, security=self._security, deadline_ms=5_000) as reader:
            for found in reader.read("orders", partition=0, follow=True):
                yield found.timestamp

    def _put(self) -> Iterator[int]:
        with self._security.client(self._leader) as client:
            writer, answers = client.do_put(flight.FlightDescriptor.for_path("orders", "0"), SCHEMA)
            while True:
                writer.write_batch(self._row("flight write"))
                answer = answers.read()
                if answer is None or "base_offset" not in json.loads(answer.to_pybytes()):
                    raise EOFError(answer)
                yield 0

    def _get(self) -> Iterator[int]:
        ticket = ReadTicket(topic="orders", partition=0, from_offset="latest", max_wait_ms=WAIT_MS)
        with self._security.client(self._leader) as client:
            reading = client.do_get(flight.Ticket(to_json(ticket)))
            while True:
                yield from_json(reading.read_chunk().app_metadata.to_pybytes(), BatchPosition).timestamp

    def _command(self) -> Iterator[int]:
        with sr.Admin(self._bootstrap, security=self._security, deadline_ms=5_000) as admin:
            while True:
                admin.configure("orders", {"retention.ms": 20_000_000 + self.rounds["admin"]})
                yield 0

    def _row(self, name: str) -> pa.RecordBatch:
        return pa.record_batch([pa.array([self.numbers[name]])], schema=SCHEMA)


def told_ms(line: str) -> float:
    return datetime.fromisoformat(json.loads(line)["at"]).timestamp() * 1_000


def strangers_told(directory: Path) -> list[dict[str, Any]]:
    """By the audit logs of brokers and controller."""
    lines = [line for file in directory.rglob("audit.log") for line in file.read_text().splitlines()]
    return [told for told in map(json.loads, lines) if told["who"] == "strangers"]


@pytest.mark.parametrize("mode", DOORS)
def test_who_goes_is_out_of_all_that_is_open_and_who_stays_notices_nothing(tmp_path: Path, mode: str) -> None:
    """Times are the leader's own: when it has read the new file, and when it appended the last row that came from who
    was to go, or that it was given. So a machine that has much to do makes no difference."""
    door = DOORS[mode](tmp_path)
    with started(tmp_path / "cluster", door.serving) as cluster, Work(cluster, door.staying) as work:
        (topic,) = cluster.admin.describe_topics(["orders"])
        leading = topic.partitions[0].leader
        assert leading is not None
        leader = cluster.brokers[leading]
        with Leaver(cluster, f"{leader.host}:{leader.port}", door.leaving) as leaver:
            assert strangers_told(cluster.directory) == []
            work.goes_on()
            taken_back_ms = time.time() * 1_000
            door.take_back()
            eventually(lambda: leaver.is_out, "nothing of it goes on", DEADLINE_S)
        work.goes_on()
        for name in ("producer", "reader", "admin"):
            assert isinstance(leaver.ended[name], door.refusals), leaver.ended
        lines = (Path(leader.log_dir) / "broker.log").read_text().splitlines()
        read_ms = next(
            ms for each in lines if "changed, and was read again" in each and (ms := told_ms(each)) >= taken_back_ms - 1
        )
        newest_ms = dict(leaver.newest_ms)
        with sr.Reader(cluster.bootstrap, security=door.staying) as reader:
            for found in reader.read("orders", partition=0):
                for name, number in leaver.numbers.items():
                    if number in found.batch.column(0).to_pylist():
                        newest_ms[name] = max(newest_ms[name], found.timestamp)
        figures = {name: round(ms - taken_back_ms) for name, ms in newest_ms.items() if name != "admin"}
        print(f"{mode}: read again after {read_ms - taken_back_ms:.0f} ms; the last of each, in ms: {figures}")  # noqa: T201
        assert len(figures) == 4
        assert {name: ms - read_ms for name, ms in newest_ms.items() if ms - read_ms > OUT_MS} == {}
        eventually(lambda: strangers_told(cluster.directory), "it is told as of a stranger", DEADLINE_S)
        for told in strangers_told(cluster.directory):  # Flight does not say from where a call comes that is no one's
            assert told["host"].partition(":")[0] in ("127.0.0.1", "unknown")
            assert told["outcome"] == AuthenticationFailed.code
        cluster.wait_healthy()
    assert work.errors == []
