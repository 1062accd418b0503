"""Who this process is to ZooKeeper, by the files that zookeeper.* settings name; and who else may do what there.

With a login, everything in the chroot is for its holders alone. But the names of its first nodes, and which brokers
there are, are for all to read: clients that know only ZooKeeper find their cluster by that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from spark_replication.config import Settings
from spark_replication.errors import InvalidConfig
from spark_replication.process.files import Care, read_named
from spark_replication.process.loopback import is_loopback
from spark_replication.zk import paths

_AUTH = "zookeeper.auth.file"
CA = "zookeeper.tls.ca.file"
_IN_CLEAR = "zookeeper.login.in.clear"
CERTIFICATE = "zookeeper.tls.certificate.file"
KEY = "zookeeper.tls.key.file"
_FOR_ALL_TO_READ = (paths.BROKER_IDS, paths.BROKER_EPOCHS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Login:
    """A dataclass, since a msgspec.Struct would show and encode every field."""

    #: USER:PASSWORD, for ZooKeeper's scheme `digest`; empty: nobody in particular.
    digest: str = field(default="", repr=False)
    #: Files of TLS, by the names of kazoo's arguments. kazoo reads them again with each connection.
    tls: tuple[tuple[str, str], ...] = ()
    #: Whether `digest` may cross a network that anybody may listen to.
    in_clear: bool = False
    #: Where an embedded ZooKeeper of this user may be: a client finds the files of TLS there, if it is asked for none.
    data_dir: str = ""

    @property
    def owns(self) -> bool:
        """Whether nodes can belong to whoever has this login."""
        return bool(self.digest)

    @property
    def of_kazoo(self) -> dict[str, Any]:
        """The arguments that a KazooClient is made with."""
        given: dict[str, Any] = (
            {"default_acl": CREATOR_ALL_ACL, "auth_data": [("digest", self.digest)]} if self.owns else {}
        )
        return {**given, "use_ssl": True, **dict(self.tls)} if self.tls else given

    def require_may_be_sent(self, address: str) -> None:
        """Raises InvalidConfig if whoever listens on the way to this ZooKeeper would learn the login. address:
        host:port,…"""
        if not self.owns or self.tls or self.in_clear:
            return
        for server in address.split(","):
            if not is_loopback(server.rpartition(":")[0].strip("[]")):
                raise InvalidConfig(
                    f"the login of {_AUTH} would cross the network to {server} in the clear: set {CA}, or "
                    f"{_IN_CLEAR}=true if nobody listens there"
                )

    def acl_of(self, path: str) -> list[ACL]:
        """Who may do what with the node at this path; empty: with the chroot."""
        if not self.owns:
            return list(OPEN_ACL_UNSAFE)
        is_for_all = not path or any(path == each or path.startswith(f"{each}/") for each in _FOR_ALL_TO_READ)
        return [*CREATOR_ALL_ACL, *(READ_ACL_UNSAFE if is_for_all else ())]


NOBODY = Login()


def read_login(settings: Settings) -> Login:
    """Raises InvalidConfig, which names the setting, if a file cannot be used."""
    digest = _read_digest(settings.zookeeper_auth_file) if settings.zookeeper_auth_file else ""
    return Login(
        digest=digest, tls=_tls(settings), in_clear=settings.zookeeper_login_in_clear, data_dir=settings.data_dir
    )


def require_protected(settings: Settings) -> None:
    """Raises InvalidConfig if whoever reaches ZooKeeper could do what security.mode keeps strangers from, or whoever
    listens on the way to it."""
    if settings.security_mode == "none":
        return
    where = f"the ZooKeeper at {settings.zookeeper_connect}"
    if not settings.zookeeper_auth_file:
        if settings.zookeeper_unprotected:
            return
        raise InvalidConfig(
            f"security.mode={settings.security_mode} keeps nobody out who reaches {where} and rewrites what is there: "
            f"set {_AUTH}, or zookeeper.unprotected=true if something else keeps strangers from it"
        )
    if settings.security_mode == "tls" and not settings.zookeeper_tls_ca_file and not settings.zookeeper_login_in_clear:
        raise InvalidConfig(
            f"security.mode=tls hides nothing that goes to {where}, the login of {_AUTH} included: set {CA}, or "
            f"{_IN_CLEAR}=true if nobody listens there"
        )


def _read_digest(path: str) -> str:
    text = read_named(_AUTH, path, Care.SECRET).decode("utf-8", errors="replace").strip()
    user, colon, password = text.partition(":")
    if not (user and colon and password and text.isprintable() and text.isascii()):
        raise InvalidConfig(f"{_AUTH}={path} does not hold one line USER:PASSWORD of visible ASCII characters")
    return text


def _tls(settings: Settings) -> tuple[tuple[str, str], ...]:
    ca, certificate, key = (
        settings.zookeeper_tls_ca_file,
        settings.zookeeper_tls_certificate_file,
        settings.zookeeper_tls_key_file,
    )
    if bool(certificate) != bool(key):
        raise InvalidConfig(f"{CERTIFICATE} and {KEY} go together: set both, or neither")
    if not ca:
        if certificate:
            raise InvalidConfig(f"{CERTIFICATE} needs {CA}: it says whose certificates to trust")
        return ()
    read_named(CA, ca, Care.TRUST)
    if not certificate:
        return (("ca", ca),)
    read_named(CERTIFICATE, certificate)
    read_named(KEY, key, Care.SECRET)
    return (("ca", ca), ("certfile", certificate), ("keyfile", key))
