"""What a life leaves in its directory for the next process on the same boot, and what takes that away."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replication.config import Settings
from spark_replication.engine.broker.broker_host import HasRegistered, RegistrationGone
from spark_replication.live.broker.clean_proof import StartProof, proven_epoch
from spark_replication.live.broker.life import BrokerLife, Options
from spark_replication.live.broker.records import Records
from spark_replication.storage.directory.broker_directory import START_FILE, StartRecord, boot_id, directory_mark
from spark_replication.storage.directory.broker_directory import write_start_record as write
from spark_replication.storage.disk.state_files import LOCAL_FILES


class Life:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark = directory_mark(directory)
        self.records = Records()
        self.proof = StartProof(directory, self.mark, LOCAL_FILES, self.records)

    def proven(self) -> int | None:
        """To the next process."""
        return proven_epoch(self.directory, trust_page_cache=True)

    def refuse_to_drop(self) -> Path:
        """What cannot be unlinked, in the record's place."""
        record = self.directory / START_FILE
        record.unlink()
        record.mkdir()
        return record


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


def test_a_killed_process_is_clean_until_it_gives_up_its_proof_for_good(life: Life) -> None:
    life.proof.renew(4)
    assert life.proven() == 4
    assert life.proof.give_up()
    assert life.proven() is None
    life.proof.renew(5)
    assert life.proven() is None


def test_a_record_that_the_disk_keeps_is_told_once_and_dropped_as_soon_as_the_disk_lets_it(life: Life) -> None:
    life.proof.renew(4)
    in_the_way = life.refuse_to_drop()
    assert [life.proof.give_up() for _ in range(2)] == [False, True]
    life.proof.renew(5)
    in_the_way.rmdir()
    write(life.directory, StartRecord(boot_id=boot_id(), directory_mark=life.mark, epoch=4))
    assert life.proven() == 4, "of an epoch that is over"
    life.records.write_again()
    assert life.proven() is None


@pytest.mark.parametrize("dropped", [True, False])
def test_who_cannot_drop_its_proof_outdates_it(life: Life, *, dropped: bool) -> None:
    options = Options(
        directory=life.directory,
        zookeeper="",
        chroot="",
        broker_id=1,
        cluster_id="ours",
        host="",
        settings=Settings(),
        lease=(0, 0),
    )
    broker = BrokerLife(options)
    broker._start_proof, broker._host.registered = life.proof, HasRegistered(4, 0)
    life.proof.renew(4)
    if not dropped:
        life.refuse_to_drop()
    broker._distrust()
    assert broker._news.empty() is dropped
    if not dropped:
        assert broker._news.get() == RegistrationGone(4)
