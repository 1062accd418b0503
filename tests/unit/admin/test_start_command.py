"""What a detached start hands on to the process that runs the cluster."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from spark_replication.admin.cli.start_command import as_options
from spark_replication.client.finding.settings_file import overrides_of
from spark_replication.config import parse_assignment, settings_from
from spark_replication.core.settings_in_force import GivenSettings


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"page.enabled": False, "default.replication.factor": 1},
        {"security.mode": "token", "security.token.file": "/secrets/tokens = all", "broker.lease.ms": 60_000},
    ],
)
def test_its_settings_come_as_they_were_given(given: dict[str, Any]) -> None:
    settings = settings_from(given)
    origins = dict.fromkeys(given, "file /etc/own.toml")
    *options, told, of_settings = as_options(GivenSettings(settings, origins))
    assert (told, json.loads(of_settings)) == ("--origins", origins)
    assert set(options[::2]) <= {"--set"}
    found: dict[str, Any] = {}
    for name, value in pairwise(options):
        if name == "--set":
            found |= parse_assignment(value)
    assert settings_from(found) == settings
    assert found == dict(overrides_of(settings))
