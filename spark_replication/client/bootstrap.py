"""The brokers that a client asks first: `host:port,…` of any brokers, or those that ZooKeeper
(`zk://host:port,…/chroot`) or the Delta tables (`delta:/path`) name. Those two also name the cluster: where one of its
brokers was, a broker of another cluster may listen by now."""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from spark_replication.errors import BrokerNotAvailable, InvalidConfig
from spark_replication.mirror.paths import mirror_path
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


class Bootstrap(Protocol):
    def cluster(self, timeout_ms: int) -> NamedCluster:
        """BrokerNotAvailable if it cannot be read."""


class NamedBrokers:
    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses

    def cluster(self, timeout_ms: int) -> NamedCluster:
        return NamedCluster(list(self._addresses))


class RegisteredBrokers:
    """The brokers that are registered in ZooKeeper. Each reading has a session of its own: a client needs ZooKeeper
    only while it knows no live broker."""

    def __init__(self, zookeeper: str, chroot: str, login: Login) -> None:
        self.zookeeper = zookeeper
        self.chroot = chroot
        self._login = login

    def cluster(self, timeout_ms: int) -> NamedCluster:
        from spark_replication.zk.reading import Reading
        from spark_replication.zk.session import Session

        session = Session.connect(
            self.zookeeper,
            self.chroot,
            session_timeout_ms=SESSION_MS,
            request_timeout_ms=max(1, timeout_ms),
            login=self._login,
        )
        try:
            reading = Reading(session)
            registered = reading.brokers().brokers
            return NamedCluster([each.address for _, each in sorted(registered.items())], reading.cluster_id())
        finally:
            session.close()


class MirroredBrokers:
    """The brokers of the table `brokers` below this path, read anew each time. This needs neither ZooKeeper nor Spark
    (M5)."""

    def __init__(self, path: str) -> None:
        self.path = mirror_path(path)

    def cluster(self, timeout_ms: int) -> NamedCluster:
        # deltalake is heavy, and a client needs it for nothing else.
        from spark_replication.mirror.brokers import BROKERS
        from spark_replication.mirror.load import UNREADABLE, read_table, reason_of

        table = BROKERS.path(self.path)
        try:
            wanted = ["broker", "host", "port", "state", "cluster_id"]
            rows = read_table(BROKERS.name, self.path, columns=wanted, timeout_ms=max(1, timeout_ms)).to_pylist()
        except UNREADABLE as error:
            raise BrokerNotAvailable(
                f"the table of brokers at {table} cannot be read ({reason_of(error)}): name the mirror.path of a "
                f"cluster after {DELTA}, and see that this process may read it"
            ) from error
        if not rows:
            raise BrokerNotAvailable(
                f"the table at {table} names no broker that lives: start brokers, and a controller, which writes it"
            )
        rows.sort(key=lambda row: (row["state"] != "live", row["broker"]))
        clusters = {row["cluster_id"] for row in rows}
        if len(clusters) > 1:
            raise BrokerNotAvailable(
                f"the table at {table} names brokers of the clusters {sorted(clusters)}: a controller that takes it "
                "over leaves those of its own, so start one, or name another mirror.path"
            )
        return NamedCluster([f"{row['host']}:{row['port']}" for row in rows], *clusters)


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
        return RegisteredBrokers(",".join(_addresses(zookeeper, text)), f"/{chroot.strip('/')}", login)
    return NamedBrokers(_addresses(text, text))


def _addresses(listed: str, whole: str) -> list[str]:
    found = [address.strip() for address in listed.split(",") if address.strip()]
    wrong = [address for address in found if not _ADDRESS.fullmatch(address)]
    if wrong or not found:
        raise InvalidConfig(f"bootstrap {whole!r} holds {wrong or 'no address'}: it is {FORMS}")
    return found
