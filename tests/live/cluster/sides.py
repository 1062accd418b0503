"""The settings of both sides in a mode of security, for clusters that tests start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.transport.certificates import Authority, tls_settings
from tests.unit.transport.test_security import token_settings

MODES = ("token", "tls")


def sides(mode: str, directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of the cluster, and those of a client: none in mode none. With tls both show certificates."""
    if mode == "none":
        return {}, {}
    if mode == "token":
        settings = token_settings(directory)
        return settings, settings
    ours = Authority(directory)
    serving, client = ({**tls_settings(ours, ours.issue(name), mutual=True)} for name in ("server", "client"))
    return serving, client
