"""The brokers that a client asks first: `host:port,…` of any brokers, or those that ZooKeeper
(`zk://host:port,…/chroot`) or the Delta tables (`delta:/path`) name. Those two also name the cluster: where one of its
brokers was, a broker of another cluster may listen by now."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from spark_replication.errors import BrokerNotAvailable, InvalidConfig
from spark_replication.mirror.delta.paths import mirror_path
from spark_replication.model import PORT_MAX
from spark_replication.zk.login import NOBODY, Login

SESSION_MS = 9_000

_ADDRESS = re.compile(r"[^\s:/,]+:[0-9]{1,5}")
FORMS = "host:port,… of any brokers, zk://host:port/chroot, or delta:/path of the mirror"
DELTA = "delta:"


class NamedCluster(NamedTuple):
    #: host:port of each.
    brokers: list[str]
    #: Empty if whoever names the brokers does not know it.
    cluster_id: str = ""
    #: host:port of the controller, if whoever names the brokers knows of one: it answers while no broker lives.
    controller: str | None = None


class Bootstrap(Protocol):
    def cluster(self, timeout_ms: int) -> NamedCluster:
        """BrokerNotAvailable if it cannot be read."""


class NamedBrokers:
    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses

    def cluster(self, timeout_ms: int) -> NamedCluster:
        return NamedCluster(list(self._addresses))


class ZooKeeperBrokers:
    """The brokers that are registered in ZooKeeper. Each reading has a session of its own: a client needs ZooKeeper
    only while it knows no live broker."""

    def __init__(self, zookeeper: str, chroot: str, login: Login) -> None:
        self.zookeeper = zookeeper
        self.chroot = chroot
        self._login = login

    @property
    def login(self) -> Login:
        """The login, with the certificate that this ZooKeeper asks for if it is the embedded one of data.dir."""
        if self._login.tls or not self._login.data_dir:
            return self._login
        from spark_replication.zookeeper_server.certificates import login_at

        return replace(self._login, tls=login_at(self.zookeeper, Path(self._login.data_dir)).tls)

    def cluster(self, timeout_ms: int) -> NamedCluster:
        from spark_replication.zk.reading import Reading
        from spark_replication.zk.session import Session

        session = Session.connect(
            self.zookeeper,
            self.chroot,
            session_timeout_ms=SESSION_MS,
            request_timeout_ms=max(1, timeout_ms),
            login=self.login,
        )
        try:
            reading = Reading(session)
            registered, controller = reading.brokers().brokers, reading.controller()
            cluster_id = reading.cluster_id()
        finally:
            session.close()
        if not (registered or controller or cluster_id):
            raise BrokerNotAvailable(
                f"this ZooKeeper has no cluster below {self.chroot}: check what follows its address"
            )
        return NamedCluster(
            [each.address for _, each in sorted(registered.items())],
            cluster_id,
            None if controller is None else controller.address,
        )


class MirroredBrokers:
    """The brokers of the table `brokers` below this path, and the controller of the table `status`, read anew each
    time. This needs neither ZooKeeper nor Spark (M5)."""

    def __init__(self, path: str) -> None:
        self.path = mirror_path(path)

    def cluster(self, timeout_ms: int) -> NamedCluster:
        # deltalake is heavy, and a client needs it for nothing else.
        from spark_replication.mirror.asking.load import UNREADABLE, read_table, reason_of
        from spark_replication.mirror.tables.brokers import BROKERS

        table = BROKERS.path(self.path)
        try:
            wanted = ["broker", "host", "port", "state", "cluster_id"]
            rows = read_table(BROKERS.name, self.path, columns=wanted, timeout_ms=max(1, timeout_ms)).to_pylist()
        except UNREADABLE as error:
            raise BrokerNotAvailable(
                f"the table of brokers at {table} cannot be read ({reason_of(error)}): name the mirror.path of a "
                f"cluster after {DELTA}, and see that this process may read it"
            ) from error
        controllers = self._controllers(timeout_ms)
        clusters = {row["cluster_id"] for row in rows} or controllers.keys()
        if not clusters:
            raise BrokerNotAvailable(
                f"the table at {table} names no broker that lives: start brokers, and a controller, which writes it"
            )
        if len(clusters) > 1:
            raise BrokerNotAvailable(
                f"the tables at {self.path} are of the clusters {sorted(clusters)}: a controller that takes them "
                "over leaves those of its own, so start one, or name another mirror.path"
            )
        rows.sort(key=lambda row: (row["state"] != "live", row["broker"]))
        (cluster_id,) = clusters
        return NamedCluster([f"{row['host']}:{row['port']}" for row in rows], cluster_id, controllers.get(cluster_id))

    def _controllers(self, timeout_ms: int) -> dict[str, str | None]:
        """The last controller of each cluster. Empty if no table says so: brokers may do without."""
        from spark_replication.mirror.asking.load import UNREADABLE, read_status

        try:
            rows = read_status(self.path, timeout_ms=max(1, timeout_ms)).to_pylist()
        except UNREADABLE:
            return {}
        return {row["cluster_id"]: row.get("controller") for row in rows}


def parse_bootstrap(text: str, login: Login = NOBODY) -> Bootstrap:
    """login: who asks ZooKeeper, if that names the brokers."""
    if text.startswith(DELTA):
        path = text.removeprefix(DELTA).strip()
        if not path:
            raise InvalidConfig(f"{text!r} names no path: it is {FORMS}")
        return MirroredBrokers(path)
    if text.startswith("zk://"):
        zookeeper, slash, chroot = text.removeprefix("zk://").partition("/")
        if not slash or not chroot.strip("/"):
            raise InvalidConfig(f"{text!r} names no chroot, such as zk://{zookeeper}/spark_replication")
        return ZooKeeperBrokers(",".join(_addresses(zookeeper, text)), f"/{chroot.strip('/')}", login)
    return NamedBrokers(_addresses(text, text))


def _addresses(listed: str, whole: str) -> list[str]:
    found = [address.strip() for address in listed.split(",") if address.strip()]
    wrong = [each for each in found if not _ADDRESS.fullmatch(each) or not 0 < int(each.rpartition(":")[2]) <= PORT_MAX]
    if wrong or not found:
        raise InvalidConfig(f"bootstrap {whole!r} holds {wrong or 'no address'}: it is {FORMS}")
    return found
