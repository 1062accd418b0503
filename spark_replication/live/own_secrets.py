"""Secrets that a cluster on one host makes for itself, as files that its user alone may read.

| file in the data directory | is for                                                                                  |
| -------------------------- | --------------------------------------------------------------------------------------- |
| zookeeper/tls/…            | reaching the embedded ZooKeeper at all (zookeeper_server.certificates)                  |
| zookeeper/login            | changing, or reading, what it stores                                                    |
| broker-token               | being a broker, controller or guardian, where clients have to prove who they are at all |
"""

from __future__ import annotations

import secrets
from pathlib import Path

from msgspec.structs import replace

from spark_replication.config import Settings
from spark_replication.errors import InvalidConfig
from spark_replication.process.files import make_secret
from spark_replication.zookeeper_server.certificates import ZOOKEEPER, ClientFiles, client_files
from spark_replication.zookeeper_server.embedded import serve_over_tls

LOGIN_FILE = f"{ZOOKEEPER}/login"
BROKER_TOKEN_FILE = "broker-token"
USER = "spark_replication"


def with_own_secrets(settings: Settings, directory: Path) -> Settings:
    """The settings of a cluster whose embedded ZooKeeper is below this directory, with what they lack of the above.
    What belongs to a login once does so when there is no security any more, and a login goes over TLS alone."""
    login, broker_token = directory / LOGIN_FILE, directory / BROKER_TOKEN_FILE
    is_secured = settings.security_mode != "none"
    if is_secured or settings.zookeeper_auth_file or login.exists():
        serve_over_tls(directory / ZOOKEEPER)
    settings = _with_certificates(settings, directory / ZOOKEEPER)
    if not settings.zookeeper_auth_file and (is_secured or login.exists()):
        make_secret(login, f"{USER}:{secrets.token_urlsafe(32)}")
        settings = replace(settings, zookeeper_auth_file=str(login))
    if not settings.security_broker_token_file and is_secured:
        make_secret(broker_token, secrets.token_urlsafe(32))
        settings = replace(settings, security_broker_token_file=str(broker_token))
    return settings


def _with_certificates(settings: Settings, zookeeper: Path) -> Settings:
    files = client_files(zookeeper)
    named = ClientFiles(
        settings.zookeeper_tls_ca_file, settings.zookeeper_tls_certificate_file, settings.zookeeper_tls_key_file
    )
    if any(named) and named != files:
        raise InvalidConfig(
            "zookeeper.tls.… are for a ZooKeeper of your own, and the embedded one makes its own certificates: unset "
            "them, or set zookeeper.connect"
        )
    if files is None or any(named):
        return settings
    return replace(
        settings,
        zookeeper_tls_ca_file=files.ca,
        zookeeper_tls_certificate_file=files.certificate,
        zookeeper_tls_key_file=files.key,
    )
