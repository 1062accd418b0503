"""What a guardian says of its broker."""

from __future__ import annotations

from pathlib import Path

from spark_replication.live.guarding.broker_file import BROKER_FILE, BrokerFile, write_broker_file
from spark_replication.messages.guarding import Serving
from spark_replication.spark.guardian_task import _serving


def test_a_disk_that_refuses_to_say_where_the_broker_serves_silences_no_guardian(tmp_path: Path) -> None:
    assert _serving(tmp_path) is None
    in_the_way = tmp_path / BROKER_FILE
    in_the_way.mkdir()
    assert _serving(tmp_path) is None
    in_the_way.rmdir()
    write_broker_file(tmp_path, BrokerFile(pid=1, incarnation="a", host="h", port=2, replication_port=3, epoch=4))
    assert _serving(tmp_path) == Serving(broker_epoch=4, host="h", port=2, pid=1)
