"""A ZooKeeper in which everything belongs to a login: strangers change nothing, and see which brokers there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_replication.errors import InvalidConfig
from spark_replication.zk import protecting
from spark_replication.zk.login import NOBODY, Login
from spark_replication.zk.operations import (
    EXISTS,
    Committed,
    Create,
    Delete,
    Operation,
    Rejected,
    RejectionReason,
    SetData,
)
from spark_replication.zk.protecting import protect
from spark_replication.zk.session import NotPermitted, Session
from spark_replication.zookeeper_server import keeper as keeper_module
from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper
from spark_replication.zookeeper_server.keeper import Keeper

pytestmark = pytest.mark.live

OURS, THEIRS = Login(digest="ours:secret"), Login(digest="theirs:other")
MADE = ("/brokers", "/brokers/ids", "/brokers/ids/1", "/brokers/epochs", "/brokers/topics", "/brokers/topics/orders")

REFUSED = Rejected(0, RejectionReason.OTHER)

Connect = Callable[..., Session]


@pytest.fixture
def connect() -> Iterator[Connect]:
    sessions: list[Session] = []

    def connected(address: str, login: Login, chroot: str = "/protected") -> Session:
        session = Session.connect(address, chroot, session_timeout_ms=10_000, request_timeout_ms=10_000, login=login)
        sessions.append(session)
        return session

    yield connected
    for session in sessions:
        session.close()


@pytest.fixture
def chroot(request: pytest.FixtureRequest) -> str:
    return f"/{request.node.name.replace('[', '-').rstrip(']')}"


def make_all(session: Session) -> None:
    assert isinstance(session.commit_now(tuple(Create(path, b"ours") for path in MADE)), Committed)


def attacks() -> list[Operation]:
    return [
        SetData("/brokers/ids/1", b"another port", 0),
        Delete("/brokers/topics/orders", EXISTS),
        Create("/brokers/ids/9", b"not json"),
        Create("/admin", b""),
    ]


@pytest.mark.parametrize("stranger", [NOBODY, THEIRS], ids=["nobody", "another login"])
def test_strangers_change_nothing(zookeeper: EmbeddedZooKeeper, connect: Connect, chroot: str, stranger: Login) -> None:
    ours = connect(zookeeper.address, OURS, chroot)
    make_all(ours)
    theirs = connect(zookeeper.address, stranger, chroot)
    for attack in attacks():
        assert theirs.commit_now((attack,)) == REFUSED, attack
    with pytest.raises(NotPermitted):
        theirs.read_now("/brokers/topics/orders")
    with pytest.raises(NotPermitted):
        theirs.children_now("/brokers/topics")
    assert theirs.children_now("/brokers/ids") == ["1"]
    for path in MADE:
        node = ours.read_now(path)
        assert node is not None
        assert (node.data, node.version) == (b"ours", 0)


def test_what_was_there_before_the_login_becomes_its_own(
    zookeeper: EmbeddedZooKeeper, connect: Connect, chroot: str
) -> None:
    stranger = connect(zookeeper.address, NOBODY, chroot)
    make_all(stranger)
    ours = connect(zookeeper.address, OURS, chroot)
    protect(ours)
    for attack in attacks():
        assert stranger.commit_now((attack,)) == REFUSED, attack
    assert stranger.read_now("/brokers/ids/1") is not None
    with pytest.raises(NotPermitted):
        stranger.read_now("/brokers/topics/orders")
    assert isinstance(ours.commit_now((SetData("/brokers/topics/orders", b"more", 0),)), Committed)


def test_what_was_interrupted_begins_anew(
    zookeeper: EmbeddedZooKeeper, connect: Connect, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = connect(zookeeper.address, NOBODY, chroot)
    make_all(stranger)
    ours = connect(zookeeper.address, OURS, chroot)

    def give_half(acls: list[tuple[str, list[object]]]) -> None:
        Session.give_acls(ours, acls[: len(acls) // 2])
        raise ConnectionError

    monkeypatch.setattr(ours, "give_acls", give_half)
    with pytest.raises(ConnectionError):
        protect(ours)
    assert isinstance(stranger.commit_now((Delete("/brokers/topics/orders", EXISTS),)), Committed)
    protect(connect(zookeeper.address, OURS, chroot))
    assert stranger.commit_now((Create("/brokers/topics/orders"),)) == REFUSED


def test_without_a_login_nothing_is_protected_and_what_is_protected_is_left_alone(
    zookeeper: EmbeddedZooKeeper, connect: Connect, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = connect(zookeeper.address, NOBODY, chroot)
    make_all(nobody)
    protect(nobody)
    assert nobody.is_open("")
    protect(connect(zookeeper.address, OURS, chroot))
    monkeypatch.setattr(protecting, "UnreadNode", None)  # whoever walks again, fails
    protect(connect(zookeeper.address, OURS, chroot))


def test_nobody_else_writes_anywhere_in_an_embedded_one(connect: Connect, tmp_path: Path) -> None:
    for _ in range(2):  # the second start finds it protected
        keeper = Keeper.start(tmp_path, 60, login=OURS)
        try:
            make_all(connect(keeper.address, OURS, f"/{_}"))
            for stranger in (NOBODY, THEIRS):
                with pytest.raises(InvalidConfig, match="refuses these credentials"):
                    connect(keeper.address, stranger, "/elsewhere")
                top = connect(keeper.address, stranger, "")
                assert "0" in top.children_now("/")
                for path in ("/x", "/zookeeper/x", "/zookeeper/quota/x"):
                    assert top.commit_now((Create(path, b"x" * 1_000),)) == REFUSED, path
        finally:
            keeper.stop()


def test_who_cannot_protect_what_it_has_started_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_session: Session) -> None:
        raise NotPermitted("another login has it")

    monkeypatch.setattr(keeper_module, "protect_all", refused)
    with pytest.raises(NotPermitted):
        Keeper.start(tmp_path, 60, login=OURS)
    found = EmbeddedZooKeeper.found_in(tmp_path)
    assert found is not None
    assert not found.alive()
    used = Keeper.start(tmp_path, 60)
    try:
        with pytest.raises(NotPermitted):
            Keeper.start(tmp_path, 60, login=OURS)
        assert found.alive(), "others use it"
    finally:
        used.stop()
