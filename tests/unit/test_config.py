"""Settings: layers over defaults, and every unknown name an error that says which was meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_replication.config import (
    BOOTSTRAP_VARIABLE,
    TOPIC_SETTINGS,
    Settings,
    described,
    flattened,
    from_environment,
    parse_assignment,
    settings_from,
    with_topic,
)
from spark_replication.errors import InvalidConfig


def test_without_any_layer_the_defaults_hold() -> None:
    assert settings_from() == settings_from({}, {}) == Settings()
    assert (Settings().default_replication_factor, Settings().min_insync_replicas) == (3, 2)


def test_a_later_layer_goes_before_an_earlier_one() -> None:
    file = {"min": {"insync": {"replicas": 3}}, "data": {"dir": "/file"}, "replica.lag.time.ms": 7}
    environment = from_environment({"SPARK_REPLICATION_DATA_DIR": "/environment", "HOME": "/home/somebody"})
    settings = settings_from(file, environment, parse_assignment("replica.lag.time.ms=9"))
    assert settings == Settings(min_insync_replicas=3, data_dir="/environment", replica_lag_time_ms=9)


@pytest.mark.parametrize(
    ("nested", "flat"),
    [
        ({}, {}),
        ({"a": 1}, {"a": 1}),
        ({"a": {"b": {"c": 1}, "d": True}}, {"a.b.c": 1, "a.d": True}),
        ({"a.b": {"c": "x"}}, {"a.b.c": "x"}),
        ({"a": {}}, {}),
    ],
)
def test_tables_within_tables_are_dotted_names(nested: dict[str, Any], flat: dict[str, Any]) -> None:
    assert flattened(nested) == flat


@pytest.mark.parametrize(
    ("text", "assigned"),
    [
        ("a=5", {"a": 5}),
        ("a=-5", {"a": -5}),
        ("a=true", {"a": True}),
        ("a=false", {"a": False}),
        ("a=True", {"a": "True"}),
        ("a=", {"a": ""}),
        ("a=b=c", {"a": "b=c"}),
        ("a=5s", {"a": "5s"}),
        ("a=-", {"a": "-"}),
        ("a=--5", {"a": "--5"}),
        ("a=host:1", {"a": "host:1"}),
    ],
)
def test_an_assignment_is_a_number_a_boolean_or_a_text(text: str, assigned: dict[str, Any]) -> None:
    assert parse_assignment(text) == assigned


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        ({"min.insync.replica": 1}, "unknown setting min.insync.replica: did you mean min.insync.replicas?"),
        ({"zzz": 1}, "unknown setting zzz: `spark-replication settings` lists them"),
        ({"min": {"insync": 1}}, "unknown setting min.insync"),
        ({"min.insync.replicas": 0}, "min.insync.replicas=0: it takes 1 or more. `spark-replication settings` says"),
        ({"min": {"insync": {"replicas": "two"}}}, "min.insync.replicas='two': it takes 1 or more"),
        ({"unclean.recovery.strategy": "magic"}, "unclean.recovery.strategy='magic': it takes .* or "),
        ({"zk.chroot": "no-slash"}, "zk.chroot='no-slash': Expected `str` matching regex"),
        ({"zk.chroot": 7}, "zk.chroot=7: Expected `str`, got `int`"),
        ({"replica.lag.time.ms": 8 * 24 * 3_600_000}, "replica.lag.time.ms=691200000: it takes .* to 604800000"),
        ({"recovery.trust.page.cache": 1}, "recovery.trust.page.cache=1: it takes true or false"),
        ({"page.port": 65_536}, "page.port=65536: it takes 0 to 65535"),
        ({"page.port": -1}, "page.port=-1: it takes 0 to 65535"),
    ],
)
def test_what_is_not_a_setting_is_refused_by_name(layer: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidConfig, match=text):
        settings_from(layer)


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"SPARK_REPLICATION_MIN_INSYNC": "1"}, "unknown environment variable SPARK_REPLICATION_MIN_INSYNC"),
        ({"SPARK_REPLICATION_": "1"}, "names are like SPARK_REPLICATION_"),
    ],
)
def test_an_unknown_variable_is_refused(environment: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidConfig, match=text):
        from_environment(environment)


def test_variables_of_others_are_not_read() -> None:
    assert from_environment({"PATH": "/bin", "SPARK_HOME": "/spark", "spark_replication_data_dir": "x"}) == {}


def test_every_setting_has_a_variable() -> None:
    variables = {"SPARK_REPLICATION_MIN_INSYNC_REPLICAS": "1", "SPARK_REPLICATION_RECOVERY_TRUST_PAGE_CACHE": "false"}
    assert from_environment(variables) == {"min.insync.replicas": 1, "recovery.trust.page.cache": False}


def test_what_is_no_assignment_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"'min\.insync\.replicas' is not NAME=VALUE"):
        parse_assignment("min.insync.replicas")


def test_a_topic_overrides_what_topics_may_and_keeps_the_rest() -> None:
    cluster = settings_from({"min.insync.replicas": 3, "replica.lag.time.ms": 7})
    topic = with_topic(cluster, {"min.insync.replicas": 1, "unclean.recovery.strategy": "manual"})
    assert topic == Settings(min_insync_replicas=1, unclean_recovery_strategy="manual", replica_lag_time_ms=7)
    assert with_topic(cluster, {}) == cluster
    assert {"min.insync.replicas", "segment.bytes"} <= TOPIC_SETTINGS
    assert {"segment.ms", "retention.ms", "retention.bytes", "flush", "flush.interval.ms"} <= TOPIC_SETTINGS


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"replica.lag.time.ms": 5}, "replica.lag.time.ms cannot be set for a topic, only for the cluster"),
        ({"segment.byte": 5}, "did you mean segment.bytes?"),
        ({"segment.bytes": 0}, "segment.bytes"),
        ({"retention.ms": -2}, "retention.ms"),
        ({"retention.bytes": -2}, "retention.bytes"),
        ({"flush": "sometimes"}, "flush"),
    ],
)
def test_a_topic_may_not_set_this(overrides: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidConfig, match=text):
        with_topic(Settings(), overrides)


def test_a_text_that_looks_like_a_number_stays_a_text() -> None:
    assert parse_assignment("data.dir=2026") == {"data.dir": "2026"}
    assert from_environment({"SPARK_REPLICATION_LOG_DIR": "7"}) == {"log.dir": "7"}


def test_every_setting_says_what_it_takes() -> None:
    told = {each.name: (each.values, each.default, each.of_topic) for each in described()}

    assert told["min.insync.replicas"] == ("1 or more", 2, True)
    assert told["unclean.recovery.strategy"] == ("manual or balanced or proactive", "balanced", True)
    assert told["recovery.trust.page.cache"] == ("true or false", True, False)
    assert told["zookeeper.session.ms"] == ("1 to 604800000", 9_000, False)
    assert told["page.port"] == ("0 to 65535", 0, False)
    assert told["retention.ms"] == ("-1 or more", 604_800_000, True)
    assert told["flush"] == ("none or interval or always", "none", True)
    assert all(each.meaning for each in described())


@pytest.mark.parametrize("port", [0, 65_535])
def test_the_page_takes_any_port_that_there_is(port: int) -> None:
    assert settings_from({"page.port": port}).page_port == port


def test_the_command_lines_bootstrap_is_no_setting_and_stops_nobody() -> None:
    assert from_environment({BOOTSTRAP_VARIABLE: "127.0.0.1:1"}) == {}
    with pytest.raises(InvalidConfig, match=f"unknown environment variable {BOOTSTRAP_VARIABLE}S"):
        from_environment({f"{BOOTSTRAP_VARIABLE}S": "127.0.0.1:1"})


def test_topics_without_overrides_share_the_settings() -> None:
    settings = Settings(replica_lag_time_ms=7)
    assert with_topic(settings, {}) is settings
    assert with_topic(settings, {"min.insync.replicas": 1}) == Settings(replica_lag_time_ms=7, min_insync_replicas=1)


def test_an_executors_container_has_room_for_its_broker() -> None:
    """As conf/spark-defaults.conf says what it is for, in MB."""
    lines = (Path(__file__).parents[2] / "conf" / "spark-defaults.conf").read_text().splitlines()
    (room,) = (int(line.split()[1].removesuffix("m")) for line in lines if line.startswith("spark.executor.memoryO"))
    settings, at_rest, of_spark, other_brokers = Settings(), 160, 384, 2
    bounds = (
        settings.index_cache_bytes,
        settings.batch_cache_bytes,
        settings.flight_read_bytes_max,
        settings.flight_write_bytes_max * 5 // 4,
        settings.replication_frame_bytes_max * other_brokers,
    )
    assert room == at_rest + of_spark + (sum(bounds) >> 20)
