"""Admin for asyncio."""

from __future__ import annotations

from functools import partial
from typing import Any

from spark_replication.client.aio.own_loop import LoopClient, in_a_thread, with_arguments_of
from spark_replication.client.asking.admin import Admin


class AsyncAdmin(LoopClient[Admin]):
    """Administers a cluster, as sr.Admin does: each of its methods is a coroutine here, and takes the same arguments. A
    request goes on though nobody awaits it any more: whoever is cancelled looks at what became of it.
    """

    @with_arguments_of(Admin.__init__)
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__("Admin", partial(Admin, *given, **named))

    create_topic = in_a_thread(Admin.create_topic)
    restore_topic = in_a_thread(Admin.restore_topic)
    widen_topic = in_a_thread(Admin.widen_topic)
    delete_topic = in_a_thread(Admin.delete_topic)
    add_partitions = in_a_thread(Admin.add_partitions)
    remove_partitions = in_a_thread(Admin.remove_partitions)
    configure = in_a_thread(Admin.configure)
    acls = in_a_thread(Admin.acls)
    add_acls = in_a_thread(Admin.add_acls)
    remove_acls = in_a_thread(Admin.remove_acls)
    known_tokens = in_a_thread(Admin.known_tokens)
    quotas = in_a_thread(Admin.quotas)
    set_quota = in_a_thread(Admin.set_quota)
    elect_leaders = in_a_thread(Admin.elect_leaders)
    acknowledge_loss = in_a_thread(Admin.acknowledge_loss)
    reassign = in_a_thread(Admin.reassign)
    plan_reassignment = in_a_thread(Admin.plan_reassignment)
    apply = in_a_thread(Admin.apply)
    drain_broker = in_a_thread(Admin.drain_broker)
    cancel_reassignment = in_a_thread(Admin.cancel_reassignment)
    reassignments = in_a_thread(Admin.reassignments)
    replicas = in_a_thread(Admin.replicas)
    groups = in_a_thread(Admin.groups)
    reset_group = in_a_thread(Admin.reset_group)
    delete_group = in_a_thread(Admin.delete_group)
    wait_reassigned = in_a_thread(Admin.wait_reassigned)
    metadata = in_a_thread(Admin.metadata)
    metadata_since = in_a_thread(Admin.metadata_since)
    sizes_on = in_a_thread(Admin.sizes_on)
    describe_topics = in_a_thread(Admin.describe_topics)
    describe_cluster = in_a_thread(Admin.describe_cluster)
    health = in_a_thread(Admin.health)
    events = in_a_thread(Admin.events)
    rebuild_mirror = in_a_thread(Admin.rebuild_mirror)
    group_metrics = in_a_thread(Admin.group_metrics)
    metrics = in_a_thread(Admin.metrics)
    settings = in_a_thread(Admin.settings)
    page_address = in_a_thread(Admin.page_address)
