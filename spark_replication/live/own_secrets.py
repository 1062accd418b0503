"""Secrets that a cluster on one host makes for itself, as files that its user alone may read.

| file in the data directory | is for                                                                                  |
| -------------------------- | --------------------------------------------------------------------------------------- |
| zookeeper/login            | changing, or reading, what the embedded ZooKeeper stores                                |
| broker-token               | being a broker, controller or guardian, where clients have to prove who they are at all |
"""

from __future__ import annotations

import secrets
from pathlib import Path

from msgspec.structs import replace

from spark_replication.config import Settings
from spark_replication.process.secret_files import make_secret

LOGIN_FILE = "zookeeper/login"
BROKER_TOKEN_FILE = "broker-token"
USER = "spark_replication"


def with_own_secrets(settings: Settings, directory: Path) -> Settings:
    """The settings of a cluster whose embedded ZooKeeper is below this directory, with what they lack of the above.
    What belongs to a login once does so when there is no security any more."""
    login, broker_token = directory / LOGIN_FILE, directory / BROKER_TOKEN_FILE
    is_secured = settings.security_mode != "none"
    if not settings.zookeeper_auth_file and (is_secured or login.exists()):
        make_secret(login, f"{USER}:{secrets.token_urlsafe(32)}")
        settings = replace(settings, zookeeper_auth_file=str(login))
    if not settings.security_broker_token_file and is_secured:
        make_secret(broker_token, secrets.token_urlsafe(32))
        settings = replace(settings, security_broker_token_file=str(broker_token))
    return settings
