"""Three nodes of Kafka on this host, each broker and controller at once, set up as our own cluster is: three replicas,
of which two must have a record, and no sync of the disk.

Deaths are noticed as soon as Kafka's settings sensibly allow. Logs keep as little as those of our measurements.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from spark_replication.admin.bench.kafka.jars import kafka_jars
from spark_replication.admin.bench.replicate import Progress
from spark_replication.errors import StartFailed
from spark_replication.process.java import QUICK_START, find_java
from spark_replication.process.locked_process import LockedProcess, last_lines
from spark_replication.process.loopback import free_ports
from spark_replication.process.spark_jars import spark_jar

NODES = 3
START_TIMEOUT_S = 60.0
TOOL_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.2
JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")  # as Kafka's own start script, but the heap
MESSAGE_BYTES_MAX = 8 << 20

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

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, object]) -> None:
        settings = [f"--config={name}={value}" for name, value in config.items()]
        self._topics("--create", f"--topic={topic}", f"--partitions={partitions}", *settings)

    def delete_topic(self, topic: str) -> None:
        self._topics("--delete", f"--topic={topic}")

    def _topics(self, *arguments: str) -> None:
        tool = "org.apache.kafka.tools.TopicCommand"
        self._run(self.program(tool, f"--bootstrap-server={self.bootstrap}", *arguments, options=QUICK_START))

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
        for place, node in zip(self._places, self._nodes, strict=True):
            with node.locked() as lock:
                assert lock is not None, "the folder is new"
                node.start(self.program("kafka.Kafka", str(place.properties), options=JVM), lock)
        self._wait_answering()

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
