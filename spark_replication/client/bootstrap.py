"""Where a client starts from: `host:port,…` of any brokers, or `zk://host:port,…/chroot` to read who is registered."""

from __future__ import annotations

import re
from typing import Protocol

from spark_replication.errors import InvalidConfig

SESSION_MS = 9_000

_ADDRESS = re.compile(r"[^\s:/,]+:[0-9]{1,5}")
_FORMS = '"host:port,host:port" of any brokers, or "zk://host:port/chroot"'


class Bootstrap(Protocol):
    def addresses(self, timeout_ms: int) -> list[str]:
        """Of brokers, host:port. BrokerNotAvailable: nobody can say."""


class NamedBrokers:
    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses

    def addresses(self, timeout_ms: int) -> list[str]:
        return list(self._addresses)


class RegisteredBrokers:
    """Read anew each time, in a session of its own: clients need ZooKeeper only while they know no living broker."""

    def __init__(self, zookeeper: str, chroot: str) -> None:
        self.zookeeper = zookeeper
        self.chroot = chroot

    def addresses(self, timeout_ms: int) -> list[str]:
        from spark_replication.zk.reading import Reading
        from spark_replication.zk.session import Session

        session = Session.connect(
            self.zookeeper, self.chroot, session_timeout_ms=SESSION_MS, request_timeout_ms=max(1, timeout_ms)
        )
        try:
            return [registration.address for _, registration in sorted(Reading(session).brokers().brokers.items())]
        finally:
            session.close()


def parse_bootstrap(text: str) -> Bootstrap:
    if text.startswith("delta:"):
        raise InvalidConfig(f"{text!r}: starting from the Delta tables is not built yet, use {_FORMS}")
    if text.startswith("zk://"):
        zookeeper, slash, chroot = text.removeprefix("zk://").partition("/")
        if not slash or not chroot.strip("/"):
            raise InvalidConfig(f"{text!r} names no chroot, such as zk://{zookeeper}/spark_replication")
        return RegisteredBrokers(",".join(_addresses(zookeeper, text)), f"/{chroot.strip('/')}")
    return NamedBrokers(_addresses(text, text))


def _addresses(listed: str, whole: str) -> list[str]:
    found = [address.strip() for address in listed.split(",") if address.strip()]
    wrong = [address for address in found if not _ADDRESS.fullmatch(address)]
    if wrong or not found:
        raise InvalidConfig(f"bootstrap {whole!r} holds {wrong or 'no address'}: it is {_FORMS}")
    return found
