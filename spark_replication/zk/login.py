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
from spark_replication.process.named_files import read_named
from spark_replication.zk import paths

_AUTH = "zookeeper.auth.file"
_CA = "zookeeper.tls.ca.file"
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
    return Login(digest=digest, tls=_tls(settings))


def require_protected(settings: Settings) -> None:
    """Raises InvalidConfig if whoever reaches ZooKeeper could do what security.mode keeps strangers from."""
    if settings.security_mode == "none" or settings.zookeeper_auth_file or settings.zookeeper_unprotected:
        return
    raise InvalidConfig(
        f"security.mode={settings.security_mode} keeps nobody out who reaches the ZooKeeper at "
        f"{settings.zookeeper_connect} and rewrites what is there: set {_AUTH}, or zookeeper.unprotected=true if "
        "something else keeps strangers from it"
    )


def _read_digest(path: str) -> str:
    text = read_named(_AUTH, path, secret=True).decode("utf-8", errors="replace").strip()
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
            raise InvalidConfig(f"{CERTIFICATE} needs {_CA}: it says whose certificates to trust")
        return ()
    read_named(_CA, ca)
    if not certificate:
        return (("ca", ca),)
    read_named(CERTIFICATE, certificate)
    read_named(KEY, key, secret=True)
    return (("ca", ca), ("certfile", certificate), ("keyfile", key))
