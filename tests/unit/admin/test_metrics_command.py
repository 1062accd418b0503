"""`spark-replication metrics`: whom it asks, and what for."""

from __future__ import annotations

import pytest

from spark_replication.client.asking.admin import Admin
from spark_replication.errors import NotController
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import PASSES_MS, FakeCluster


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "broker 1, per partition: False\n"),  # who is the controller
        (["--controller", "--per-partition"], "broker 1, per partition: True\n"),
        (["--broker", "2"], "broker 2, per partition: False\n"),
    ],
)
def test_the_text_is_printed_as_it_came(run: Run, cluster: FakeCluster, options: list[str], told: str) -> None:
    assert run("metrics", "-b", cluster.bootstrap, *options) == (0, told, "")


def test_one_of_both_is_asked(run: Run, cluster: FakeCluster) -> None:
    assert run("metrics", "-b", cluster.bootstrap, "--controller", "--broker", "1").exit == 2


def test_a_broker_that_is_not_there_is_not_waited_for(run: Run, cluster: FakeCluster) -> None:
    found = run("metrics", "-b", cluster.bootstrap, "--broker", "9")
    assert (found.exit, found.out) == (1, "")
    assert "broker 9 is not registered, [1, 2] are" in found.err


def test_a_controller_is_waited_for(cluster: FakeCluster) -> None:
    cluster.controller = None
    with Admin(cluster.bootstrap, deadline_ms=PASSES_MS) as admin:
        with pytest.raises(NotController):
            admin.metrics()
        assert admin.metrics(2) == "broker 2, per partition: False\n"
