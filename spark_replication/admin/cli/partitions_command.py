"""`spark-replication partitions`: the leader of each partition, the worst partitions first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import click

from spark_replication.admin.cli.listing import Format, admin_at, bootstrap, output, security, show, watched
from spark_replication.client.asking.admin import PartitionDescription
from spark_replication.model import UNCLEAN, PossibleLoss
from spark_replication.transport.security.security import Security
from spark_replication.view.conditions import conditions_of
from spark_replication.view.health import may_have_lost

_OF_A_PARTITION = (
    *("partition", "leader", "leader_epoch", "partition_epoch", "isr", "elr", "replicas", "min_isr", "elected"),
)
_COLUMNS = ("topic", *_OF_A_PARTITION, "possible_loss")

# What may be wrong with a partition, the worst first.
_TROUBLES: dict[str, Callable[[PartitionDescription], bool]] = {
    "leaderless": lambda each: "leaderless" in conditions_of(each),
    "under_min_isr": lambda each: "under_min_isr" in conditions_of(each),
    "under_replicated": lambda each: "under_replicated" in conditions_of(each),
    "moving": lambda each: "moving" in conditions_of(each),
    "possible_loss": lambda each: each.possible_loss is not None,
    "unclean": lambda each: each.elected in UNCLEAN,
}


@click.command()
@bootstrap
@security
@output
@watched
@click.option("--leaderless", is_flag=True, help="those without a leader")
@click.option("--under-min-isr", is_flag=True, help="those that take no acks=all at present")
@click.option("--under-replicated", is_flag=True, help="those with a replica out of sync that no move is adding")
@click.option(
    "--moving", is_flag=True, help="those to which a reassignment adds replicas, or from which it removes some"
)
@click.option("--possible-loss", is_flag=True, help="those that may have lost records, and nobody has acknowledged it")
@click.option("--unclean", is_flag=True, help="those whose leader was elected from outside ISR and ELR")
@click.argument("names", nargs=-1, metavar="[TOPIC]…")
def partitions(bootstrap: str, output: Format, security: Security, names: tuple[str, ...], **wanted: bool) -> None:
    """Who leads which partition, who is in sync, who is eligible: the worst first.

    Of several filters, what any of them lets through is shown."""
    asked_for = [name for name, is_wanted in wanted.items() if is_wanted]
    with closing(admin_at(bootstrap, security)) as admin:
        found = [
            (_rank(partition), topic.name, partition)
            for topic in admin.describe_topics(list(names) or None)
            for partition in topic.partitions
            if not asked_for or any(_TROUBLES[name](partition) for name in asked_for)
        ]
    found.sort(key=lambda each: (each[0], each[1], each[2].partition))
    rows = (
        (name, *(getattr(partition, column) for column in _OF_A_PARTITION), _loss_of(partition, output))
        for _, name, partition in found
    )
    show(_COLUMNS, rows, output=output)


def _loss_of(partition: PartitionDescription, output: Format) -> PossibleLoss | str | None:
    loss = partition.possible_loss
    return loss if loss is None or output == "json" else may_have_lost(loss)


def _rank(partition: PartitionDescription) -> int:
    return next((rank for rank, is_so in enumerate(_TROUBLES.values()) if is_so(partition)), len(_TROUBLES))
