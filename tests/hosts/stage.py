"""A cluster on Spark over several hosts: Workers, a driver, and room for a second one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import spark_replication as sr
from spark_replication.config import settings_from
from spark_replication.live.guarding.broker_file import BrokerFile
from spark_replication.transport.security.security import Security, read_security
from tests.hosts.bed import ROOT, Bed
from tests.hosts.links import Links
from tests.hosts.spark import AUTHENTICATED, HostedBrokers, HostedDriver, HostedSpark
from tests.hosts.zookeeper import HostedZooKeeper, login_settings
from tests.live.cluster.history import SCHEMA, Load
from tests.live.cluster.witness import Witness
from tests.unit.transport.test_security import broker_settings, token_settings

CENTRE = "centre"  # ZooKeeper, and Spark's Master
DRIVERS = ("driver", "standby")
BROKERS = 3
ROWS = 20
# An executor that is silent for so long counts as lost.
QUICK = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": "8s",
    "spark.network.timeoutInterval": "1s",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.decommission.enabled": "true",
    "spark.executor.decommission.forceKillTimeout": "3s",  # a guardian's task does not end by itself
}


CLIENT = """security.mode = "token"
security.token.in.clear = true
"""


class Seen:
    """tests.live.cluster.witness.Witnessed."""

    def __init__(self, zookeeper: str, security: Security, brokers: HostedBrokers) -> None:
        self.zookeeper = zookeeper
        self.security = security
        self._brokers = brokers

    @property
    def brokers(self) -> Mapping[int, BrokerFile]:
        return self._brokers.files()


class Stage:
    """Workers of two slots each, a driver with `slots` of them, and a second driver, not started, with one on each."""

    def __init__(self, bed: Bed, workers: Sequence[str], slots: int) -> None:
        self.bed = bed
        self.links = Links(bed)
        zookeeper = HostedZooKeeper(bed, bed[CENTRE])
        zookeeper.start()
        self.spark = HostedSpark(bed, bed[CENTRE], [bed[name] for name in workers], cores=2)
        self.brokers = HostedBrokers(self.spark.workers)
        #: The executors that were first seen beside a broker, and how many lines of state had been told then.
        self._seen_beside: dict[int, tuple[list[int], int]] = {}
        settings: dict[str, Any] = {
            **token_settings(bed.directory),
            "security.token.in.clear": "true",
            **login_settings(bed.directory),
            "zookeeper.login.in.clear": "true",
            **broker_settings(bed.directory),
            "zookeeper.connect": zookeeper.address,
            "zookeeper.session.ms": 3_000,
            "mirror.path": str(bed.directory / "lake"),
            "page.enabled": "false",
        }
        self.security = read_security(
            settings_from(
                {
                    **settings,
                    "page.enabled": False,
                    "security.token.in.clear": True,
                    "zookeeper.login.in.clear": True,
                }
            )
        )
        self.driver, self.standby = (
            HostedDriver(
                bed,
                bed[name],
                self.spark.url,
                brokers=BROKERS,
                settings=settings,
                spark={**AUTHENTICATED, **QUICK, "spark.cores.max": str(cores)},
            )
            # Guardians come to be where a driver has slots: the one that takes over has them wherever brokers may be.
            for name, cores in zip(DRIVERS, (slots, len(workers)), strict=True)
        )
        self.commanding = self.driver
        self.driver.launch()
        self.zookeeper = self.driver.wait_started().zookeeper
        self.driver.wait_healthy()

    def types(self, *lines: str) -> None:
        """Lines of the guide, in the folder that Spark's Master has for itself."""
        home = self.bed[CENTRE]
        (home.files / "root.toml").write_text(f'security.token.file = "{self.bed.directory}/token"\n{CLIENT}')
        for line in lines:
            program, *words = shlex.split(line)
            assert program == "spark-replication"
            asked = [*words, "-b", self.zookeeper, "--config", "root.toml"]
            typed = shlex.join([sys.executable, "-m", "spark_replication", *asked])
            process = home.run("sh", "-c", f"cd {self.bed.files} && PYTHONPATH={ROOT} exec {typed}")
            assert process.wait(120.0) == 0, (line, process.says())

    def guarded_at_home(self) -> int | None:
        """A broker whose guardian is in an executor beside it. An executor that went with its Worker comes back
        anywhere: there is such a broker as long as the driver has more slots than there are hosts without one.

        An executor that has just come may have no guardian yet, and its broker may be kept from afar until the
        guardians gather again: whoever kills that one ends nobody's guardian. So the driver has to have told its state
        since this executor was there, and not that its broker has no guardian on its host.
        """
        lines = self.commanding.status()
        for broker in self.brokers.pids():
            executors = self.spark.executors(self.brokers.host(broker))
            if not executors:
                self._seen_beside.pop(broker, None)
                continue
            seen, told = self._seen_beside.setdefault(broker, (executors, len(lines)))
            if seen != executors:
                self._seen_beside[broker] = executors, len(lines)
            elif len(lines) > told and f"broker {broker} has no guardian on its host" not in lines[-1]:
                return broker
        return None

    @contextmanager
    def loaded(self, topic: str) -> Iterator[Load]:
        """What is acknowledged while the block runs, and before and after it, is read once, at its offset, also by
        those who read on meanwhile."""
        with sr.Admin(self.zookeeper, security=self.security) as admin:
            admin.create_topic(topic, SCHEMA, partitions=BROKERS)
        with Witness(Seen(self.zookeeper, self.security, self.brokers), topic, BROKERS) as witness:
            with Load(self.zookeeper, topic, BROKERS, self.security) as load:
                load.wait_for_more(ROWS)
                yield load
                load.wait_for_more(ROWS)
            load.check_history()
            witness.check(load)
