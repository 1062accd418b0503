"""The settings in force, and who may do what, for the page to show: nobody changes them there."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from spark_replication.client.asking.told_settings import CONTROLLER, table_uri_of
from spark_replication.config import TOPIC_SETTINGS
from spark_replication.core.settings_in_force import DEFAULT
from spark_replication.errors import ReplicationError
from spark_replication.messages.observing import ToldSettings
from spark_replication.model import BrokerId, Scalar
from spark_replication.page.answers import AclRow, AclsShown, Age, SettingRow, SettingsInForce
from spark_replication.page.recent_events import Remembered
from spark_replication.process.threads import now_ms

#: A topic by its name, one broker, or with None all processes.
SettingsOf = str | BrokerId | None


class RecentSettings(Remembered[SettingsOf, SettingsInForce]):
    def asked(self, asked: SettingsOf) -> SettingsInForce:
        if isinstance(asked, str):
            found = self._cluster.settings(CONTROLLER, topic=asked)
        else:
            found = self._cluster.settings(asked)
        told = {name: each for name, each in found.items() if isinstance(each, ToldSettings)}
        return SettingsInForce(
            rows=_rows(told.items(), of_topic=isinstance(asked, str)),
            table_uri=table_uri_of(told[CONTROLLER], asked) if isinstance(asked, str) and CONTROLLER in told else None,
            of_cluster=next((each.of_cluster for each in told.values() if each.of_cluster is not None), None),
            directories={name: each.directory for name, each in told.items()},
            errors={name: str(each) for name, each in found.items() if isinstance(each, ReplicationError)},
            age=Age(as_of_ms=now_ms()),
        )

    def failed(self, known: SettingsInForce | None, why: str) -> SettingsInForce:
        known = SettingsInForce(age=Age()) if known is None else known
        return replace(known, age=replace(known.age, error=why))


class RecentAcls(Remembered[None, AclsShown]):
    """Asked as whoever the page was started by: who may not see them there is told why, and nothing that was told
    before."""

    def asked(self, _asked: None) -> AclsShown:
        told = self._cluster.acls()
        rows = (
            AclRow(
                principal=each.principal,
                effect=each.effect,
                right=each.right,
                kind=each.kind,
                name=each.name,
                host=each.host,
            )
            for each in told.acls
        )
        return AclsShown(acls=tuple(rows), super_users=told.super_users, age=Age(as_of_ms=now_ms()))

    def failed(self, _known: AclsShown | None, why: str) -> AclsShown:
        return AclsShown(age=Age(error=why))


def _rows(told: Iterable[tuple[str, ToldSettings]], *, of_topic: bool) -> tuple[SettingRow, ...]:
    """A row for each value of a setting, with all who have it so."""
    who: dict[tuple[str, Scalar, str], list[str]] = {}
    for process, answer in told:
        for each in answer.settings:
            if not of_topic or each.name in TOPIC_SETTINGS:
                who.setdefault((each.name, each.value, each.origin), []).append(process)
    rows = (
        SettingRow(setting=name, value=value, origin=origin, processes=tuple(processes))
        for (name, value, origin), processes in who.items()
    )
    return tuple(sorted(rows, key=lambda row: (row.origin == DEFAULT, row.setting, row.processes)))
