"""Asks the controller and brokers which settings each has in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.routes import ASK_MS, Routes
from spark_replication.errors import InvalidRequest, NotController, ReplicationError
from spark_replication.messages.actions import DESCRIBE_SETTINGS
from spark_replication.messages.descriptions import Metadata
from spark_replication.messages.observing import DescribeSettings, ToldSettings
from spark_replication.model import BrokerId
from spark_replication.tables.places import table_uri

#: Which process; None for all of them.
Process = BrokerId | Literal["controller"] | None

CONTROLLER: Final = "controller"


def told_settings(
    routes: Routes, metadata: Metadata, process: Process, topic: str | None, deadline: Deadline
) -> Mapping[str, ToldSettings | ReplicationError]:
    """What each told, or why it did not, by `controller` and `broker 1`."""
    brokers = {broker: each.address for broker, each in sorted(metadata.brokers.items())}
    if isinstance(process, int) and process not in brokers:
        raise InvalidRequest(f"broker {process} is not registered, {sorted(brokers)} are: name one of these")
    asked = DescribeSettings(topic=topic)

    def told(address: str | None) -> ToldSettings | ReplicationError:
        if address is None:
            return NotController("no broker knows of a controller: start one, or wait until a standby takes over")
        try:
            return routes.call(address, DESCRIBE_SETTINGS, asked, deadline.within_ms(ASK_MS))
        except ReplicationError as error:
            return error

    found = {CONTROLLER: told(metadata.controller)} if process in (None, CONTROLLER) else {}
    return found | {
        f"broker {broker}": told(address) for broker, address in brokers.items() if process in (None, broker)
    }


def table_uri_of(told: ToldSettings, topic: str) -> str | None:
    """Where the table of this topic lies, of which these settings are; None if it is no table."""
    settings = {each.name: each.value for each in told.settings}
    path = settings.get("table.path")
    return table_uri(str(path), topic) if settings.get("table") and path else None
