"""Makes nodes a login's own that were there before it."""

from __future__ import annotations

import logging

from kazoo.security import CREATOR_ALL_ACL, READ_ACL_UNSAFE

from spark_replication.zk.operations import UnreadNode
from spark_replication.zk.session import Session

_OF_ZOOKEEPER = ("/zookeeper", "/zookeeper/quota")  # it makes them itself; nobody may write to /zookeeper/config

log = logging.getLogger(__name__)


def protect(session: Session) -> None:
    """Everything below the chroot, if the chroot was made without a login. It comes last: what was interrupted begins
    anew with the next session."""
    if not session.login.owns or not session.is_open(""):
        return
    found, level = [""], [""]
    while level:
        listed = session.children_many([path or "/" for path in level])
        level = [
            f"{path}/{name}"
            for path, names in zip(level, listed, strict=True)
            if not isinstance(names, UnreadNode)
            for name in names
        ]
        found += level
    session.give_acls([(path, session.login.acl_of(path)) for path in found[1:]])
    session.give_acls([("", session.login.acl_of(""))])
    log.warning("%d nodes in ZooKeeper belong to this cluster's login now: anybody could change them", len(found))


def protect_all(session: Session) -> None:
    """A ZooKeeper that serves one cluster alone. session: without a chroot. Everybody may see that it answers, and
    nobody else may write anywhere."""
    if session.login.owns and session.is_open(""):
        session.give_acls([(path, CREATOR_ALL_ACL) for path in _OF_ZOOKEEPER])
        session.give_acls([("", [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE])])
