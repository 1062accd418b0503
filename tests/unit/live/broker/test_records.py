"""What a broker's full disk refuses of its small files: written later, and no reason to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replication.errors import StaleLease, StorageFailed
from spark_replication.live.broker.lease import LEASE_FILE, BrokerLease
from spark_replication.live.broker.records import Records
from tests.small_disk import fill, leave, small_disk


class Disk:
    def __init__(self) -> None:
        self.full = False
        self.written: list[str] = []

    def write(self, content: str) -> None:
        if self.full:
            raise StorageFailed("no space left")
        self.written.append(content)


def test_what_was_refused_is_written_again_in_its_latest_form_until_the_disk_takes_it() -> None:
    disk, records = Disk(), Records()
    records.write("start", lambda: disk.write("start 1"))
    disk.full = True
    for content in ("start 2", "start 3"):
        records.write("start", lambda content=content: disk.write(content))  # type: ignore[misc]
    records.write("broker", lambda: disk.write("broker 1"))
    records.write_again()
    disk.full = False
    assert disk.written == ["start 1"]
    for _ in range(2):
        records.write_again()
        assert disk.written == ["start 1", "start 3", "broker 1"]


def test_what_is_newer_replaces_what_was_refused() -> None:
    disk, records = Disk(), Records()
    disk.full = True
    records.write("start", lambda: disk.write("start 1"))
    disk.full = False
    records.write("start", lambda: disk.write("start 2"))
    records.write_again()
    assert disk.written == ["start 2"]


def test_a_lease_that_a_full_disk_refuses_holds_in_this_life(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as mounted:
        lease = BrokerLease(mounted, 1, 0, lease_ms=100, now_ms=0)
        written = (mounted / LEASE_FILE).read_bytes()
        fill(mounted)
        lease.renew(2, 5, lease_ms=100, now_ms=90)
        assert not lease.expired(189)
        with pytest.raises(StaleLease, match="epoch 2, attempt 5 has taken over"):
            lease.renew(1, 0, lease_ms=100, now_ms=91)
        assert (mounted / LEASE_FILE).read_bytes() == written
        leave(mounted)
        lease.renew(2, 6, lease_ms=100, now_ms=95)
        with pytest.raises(StaleLease):
            BrokerLease(mounted, 2, 5, lease_ms=100, now_ms=0)
