"""Three nodes of Kafka on this host, each broker and controller at once, set up as our own cluster is: three replicas,
of which two must have a record, and no sync of the disk.

Deaths are noticed as soon as Kafka's settings sensibly allow. Logs keep as little as those of our measurements.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from spark_replication.admin.bench.harness import Progress
from spark_replication.admin.bench.kafka.jars import kafka_jars
from spark_replication.admin.bench.kafka.told import Described, described, elections_s, leader_of_quorum
from spark_replication.errors import StartFailed
from spark_replication.process.java import QUICK_START, find_java, spark_jar
from spark_replication.process.loopback import free_ports
from spark_replication.process.processes import LockedProcess, last_lines, wait_ended

NODES = 3
START_TIMEOUT_S = 60.0
RECOVER_TIMEOUT_S = 300.0  # of 10,000 partitions
TOOL_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
PARTITIONS_A_REQUEST_MAX = 5_000  # Kafka refuses what changes more than 10,000 records of its metadata at once
POLL_S = 0.2
JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")  # as Kafka's own start script, but the heap
MESSAGE_BYTES_MAX = 8 << 20
METADATA_LOGS = "__cluster_metadata-0/*.log"
COMPILE_AND_RUN = "org.codehaus.janino.SimpleCompiler"

_PROPERTIES = """\
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
default.replication.factor=3
min.insync.replicas=2
unclean.leader.election.enable=false
group.initial.rebalance.delay.ms=0
message.max.bytes={message}
replica.fetch.max.bytes={message}
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
controller.quorum.election.timeout.ms=1000
controller.quorum.fetch.timeout.ms=1000
log.retention.check.interval.ms=100
log.initial.task.delay.ms=0
log.segment.delete.delay.ms=0
"""


class _Place(NamedTuple):
    number: int
    directory: Path
    client: int
    controller: int

    @property
    def properties(self) -> Path:
        return self.directory / "server.properties"


class KafkaCluster:
    def __init__(self, jars: Path, places: Sequence[_Place]) -> None:
        self._jars = jars
        self._places = places
        self._nodes = [LockedProcess(place.directory) for place in places]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{place.client}" for place in self._places)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(pid for node in self._nodes if (pid := node.pid()) is not None)

    def program(self, name: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        """The command that runs a program of Kafka."""
        return [find_java("Kafka"), *options, "-cp", f"{self._jars}/*", name, *arguments]

    def own_program(self, name: str, *arguments: str) -> list[str]:
        """The command that runs a program of this folder, which Janino compiles: where Java runs, javac may be
        missing."""
        jars = (f"{self._jars}/*", str(spark_jar("janino")), str(spark_jar("commons-compiler")))
        source = str(Path(__file__).with_name(f"{name}.java"))
        return [find_java("Kafka"), "-cp", os.pathsep.join(jars), COMPILE_AND_RUN, source, name, *arguments]

    def create_topic(self, topic: str, partitions: int, replicas: int, config: Mapping[str, object]) -> None:
        counts = (f"--partitions={min(partitions, PARTITIONS_A_REQUEST_MAX)}", f"--replication-factor={replicas}")
        settings = [f"--config={name}={value}" for name, value in config.items()]
        self._topics("--create", f"--topic={topic}", *counts, *settings)
        for made in range(PARTITIONS_A_REQUEST_MAX, partitions, PARTITIONS_A_REQUEST_MAX):
            more = min(partitions, made + PARTITIONS_A_REQUEST_MAX)
            self._topics("--alter", f"--topic={topic}", f"--partitions={more}")

    def delete_topic(self, topic: str) -> None:
        self._topics("--delete", f"--topic={topic}")

    def describe_topic(self, topic: str) -> list[Described]:
        return described(self._topics("--describe", f"--topic={topic}"))

    def _topics(self, *arguments: str) -> str:
        return self._tool("TopicCommand", f"--bootstrap-server={self.bootstrap}", *arguments)

    def _tool(self, name: str, *arguments: str) -> str:
        return self._run(self.program(f"org.apache.kafka.tools.{name}", *arguments, options=QUICK_START))

    def active_controller(self) -> int:
        """The node that leads the metadata quorum."""
        return leader_of_quorum(
            self._tool("MetadataQuorumCommand", f"--bootstrap-server={self.bootstrap}", "describe", "--status")
        )

    def stop_answering(self, number: int) -> None:
        """Send SIGSTOP to a node."""
        os.kill(self._pid(number), signal.SIGSTOP)

    def _pid(self, number: int) -> int:
        pid = self._nodes[number - 1].pid()
        assert pid is not None, f"node {number} lives"
        return pid

    def kill(self, number: int) -> None:
        """Send SIGKILL to a node, and return once it has ended."""
        pid = self._pid(number)
        ending = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(ending, signal.SIGKILL)
            wait_ended(ending, STOP_TIMEOUT_S)
        finally:
            os.close(ending)

    def elections_s(self, topic: str, *, since_s: float) -> dict[int, float]:
        """When each partition of the topic last got another leader since then, by the metadata log of the nodes."""
        logs = sorted((self._places[self.active_controller() - 1].directory / "data").glob(METADATA_LOGS))
        dumped = self._tool("DumpLogSegments", "--cluster-metadata-decoder", f"--files={','.join(map(str, logs))}")
        return elections_s(dumped, topic, since_s)

    def restart(self, number: int) -> None:
        """Start a node that was killed, and return once it answers."""
        self._start(number)
        self._wait_answering()

    def wait_in_sync(self, topic: str) -> None:
        """Wait until all replicas of the topic are."""
        self._wait_described(topic, lambda each: each.isr == each.replicas)

    def elect_preferred(self, topic: str) -> None:
        """Give each partition its first replica as its leader."""
        self._tool(
            "LeaderElectionCommand",
            f"--bootstrap-server={self.bootstrap}",
            "--election-type=preferred",
            "--all-topic-partitions",
        )
        self._wait_described(topic, lambda each: each.leader == each.replicas[0])

    def _wait_described(self, topic: str, is_so: Callable[[Described], bool]) -> None:
        deadline_s = time.monotonic() + RECOVER_TIMEOUT_S
        while not all(map(is_so, self.describe_topic(topic))):
            if time.monotonic() > deadline_s:
                raise StartFailed(f"Kafka's topic {topic} did not recover within {RECOVER_TIMEOUT_S:.0f} s")

    def _run(self, command: Sequence[str]) -> str:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise StartFailed(f"{command[-2]} of Kafka did not end within {TOOL_TIMEOUT_S:.0f} s") from error
        if done.returncode != 0:
            raise StartFailed(f"{command} ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def start(self) -> None:
        """Start the nodes, and return once they answer. Raises StartFailed."""
        name = self._run(self.program("kafka.tools.StorageTool", "random-uuid", options=QUICK_START)).splitlines()[-1]
        for place in self._places:
            self._write_properties(place)
        formats = [
            self.program("kafka.tools.StorageTool", "format", f"--cluster-id={name}", f"--config={place.properties}")
            for place in self._places
        ]
        with ThreadPoolExecutor(len(formats)) as together:
            list(together.map(self._run, formats))
        for place in self._places:
            self._start(place.number)
        self._wait_answering()

    def _start(self, number: int) -> None:
        place, node = self._places[number - 1], self._nodes[number - 1]
        with node.locked() as lock:
            assert lock is not None, f"node {number} does not live"
            node.start(self.program("kafka.Kafka", str(place.properties), options=JVM), lock)

    def stop(self) -> None:
        with ThreadPoolExecutor(len(self._nodes)) as together:
            list(together.map(lambda node: node.stop(STOP_TIMEOUT_S), self._nodes))

    def _write_properties(self, place: _Place) -> None:
        voters = ",".join(f"{each.number}@127.0.0.1:{each.controller}" for each in self._places)
        text = _PROPERTIES.format(
            number=place.number,
            voters=voters,
            client=place.client,
            controller=place.controller,
            data=place.directory / "data",
            message=MESSAGE_BYTES_MAX,
        )
        place.properties.write_text(text, encoding="utf-8")

    def _wait_answering(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        for place, node in zip(self._places, self._nodes, strict=True):
            while not _listens(place.client):
                if not node.alive() or time.monotonic() > deadline_s:
                    raise StartFailed(f"a node of Kafka did not start; its log ends with:\n{last_lines(node.log_path)}")
                time.sleep(POLL_S)


@contextmanager
def kafka_cluster(directory: Path, progress: Progress) -> Iterator[KafkaCluster]:
    """Run Kafka in this folder, which is new, while the block runs. Raises StartFailed."""
    jars = kafka_jars(progress)
    ports = iter(free_ports(2 * NODES))
    places = [_Place(n, directory / str(n), next(ports), next(ports)) for n in range(1, NODES + 1)]
    for place in places:
        place.directory.mkdir(parents=True)
    cluster = KafkaCluster(jars, places)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True
