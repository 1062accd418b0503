"""In which order a controller's thread takes what has come."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from spark_replication.config import Settings
from spark_replication.core.controller.events import LogInfoRead
from spark_replication.live.controller.host import ControllerHost
from spark_replication.messages.commands import ReplicaLogInfos
from spark_replication.transport.security import NO_SECURITY


def test_all_log_infos_that_have_come_are_taken_before_the_task_that_came_first(tmp_path: Path) -> None:
    host = ControllerHost(
        "nowhere",
        name="driver",
        host="127.0.0.1",
        settings=Settings(),
        security=NO_SECURITY,
        seat=tmp_path,
        mirror_path=str(tmp_path / "mirror"),
    )
    done: list[str] = []
    loop = SimpleNamespace(
        take=lambda read: done.append(f"broker {read.broker}"), go_on=lambda _now_ms: done.append("go on")
    )
    host._tasks.put(lambda: done.append("task"))
    for broker in (1, 2):
        host._post_log_info(LogInfoRead(broker, ReplicaLogInfos(broker_epoch=0, partitions=())))
    nobody = cast("Any", None)
    host._work(cast("Any", loop), nobody, nobody, lambda: "task" in done)
    host.close()
    assert done == ["broker 1", "broker 2", "go on", "task"]
