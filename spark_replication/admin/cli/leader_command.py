"""`spark-replication leader`: elections by hand (L5), and what those from outside ISR and ELR may have cost (D2)."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from spark_replication.admin.cli.groups import Group
from spark_replication.admin.cli.listing import Format, admin_at, bootstrap, output, security, show, tell_refused
from spark_replication.client.asking.admin import Admin, PartitionDescription
from spark_replication.client.asking.descriptions import described
from spark_replication.client.asking.replica_sizes import ReplicaDescription
from spark_replication.errors import InvalidRequest, ReplicationError
from spark_replication.messages.requests import ElectionKind
from spark_replication.model import BrokerId, PossibleLoss, TopicPartition
from spark_replication.transport.security.security import Security

ANSWERS_S = 5.0  # within this, brokers that answer at all have told of their logs
LOOK_S = 0.2

_COLUMNS = ("partition", "leader_before", "leader", "leader_epoch", "elected", "error")
_CANDIDATE_COLUMNS = ("partition", "replica", "eligible", "last_epoch", "log_end", "fewer_records")
_LOSS_COLUMNS = ("partition", "since", "from_offset", "records_max", "first_epoch", "last_epoch", "error")
_NOTHING = {
    "preferred": "nothing to elect: every partition is led by its preferred replica, or that is not in sync",
    "other": "nothing to elect: every partition has a leader",
}


class _Chosen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
    partition: int
    desiredLeader: BrokerId | None = None  # noqa: N815 (the source's name)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    partitions: tuple[_Chosen, ...]


@click.group(cls=Group)
def leader() -> None:
    """Who leads which partition."""


@leader.command()
@bootstrap
@security
@output
@click.option("--kind", type=click.Choice(get_args(ElectionKind)), default="preferred", show_default=True)
@click.option("--leader", "desired", type=int, metavar="ID", help="with --kind designation: who is to lead")
@click.option(
    "--path-to-json-file",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='in place of PARTITIONS: {"partitions": [{"topic": "foo", "partition": 1, "desiredLeader": 0}]}',
)
@click.option(
    "--without-table",
    is_flag=True,
    help="though the topic's table cannot be sealed: offsets that it has may be given again, to other records",
)
@click.option("--yes", is_flag=True, help="without asking, though records may be lost")
@click.argument("partitions", nargs=-1)
def elect(
    bootstrap: str,
    security: Security,
    output: Format,
    *,
    kind: ElectionKind,
    desired: int | None,
    file: Path | None,
    without_table: bool,
    yes: bool,
    partitions: tuple[str, ...],
) -> None:
    """Elect leaders of PARTITIONS (such as orders-3), or of all that the kind can act on.

    preferred: the first replica leads again, if it is in sync. The others are for partitions without a leader, and may
    lose acknowledged records: unclean (any live replica, at once), longest_log_balanced and longest_log_proactive
    (whose log is longest), designation (the one that --leader or the file names). They show what each replica has, and
    ask."""
    if file is not None and (partitions or desired is not None):
        raise click.UsageError("--path-to-json-file names partitions and leaders: leave out PARTITIONS and --leader.")
    designations = _read(file) if file is not None else dict.fromkeys(partitions, desired)
    if kind == "designation" and (not designations or None in designations.values()):
        raise click.UsageError(
            "A designation needs the partitions and who is to lead each: --leader, or desiredLeader in the file."
        )
    if kind != "designation" and desired is not None:
        raise click.UsageError("--leader is for --kind designation alone.")
    with closing(admin_at(bootstrap, security)) as admin:
        before = _known(admin, _topics_of(designations) if designations else None)
        named = list(designations) or _electable(kind, before)
        if not named:
            click.echo(_NOTHING["preferred" if kind == "preferred" else "other"], err=True)
            show(_COLUMNS, [], output=output)
            return
        if kind != "preferred" and not yes:
            _ask(admin, named, before)
        leaders = {name: broker for name, broker in designations.items() if broker is not None}
        refused = _elect(admin, kind, named, leaders if kind == "designation" else {}, without_table=without_table)
        after = _settled(admin, named, refused)
    show(_COLUMNS, [_row(name, before, after, refused) for name in named], output=output)
    tell_refused(refused)


@leader.command()
@bootstrap
@security
@output
@click.argument("partitions", nargs=-1)
def acknowledge_loss(bootstrap: str, security: Security, output: Format, partitions: tuple[str, ...]) -> None:
    """Say that you know what PARTITIONS (such as orders-3), or all, may have lost: nothing shows it any more.

    A leader from outside ISR and ELR may lack acknowledged records: those from FROM OFFSET on, at most RECORDS MAX of
    them (empty: nobody knows). Tell whoever relies on them first: what this shows is shown once."""
    with closing(admin_at(bootstrap, security)) as admin:
        seen = _known(admin, _topics_of(partitions) if partitions else None)
        losses = {name: each.possible_loss for name, each in seen.items() if each.possible_loss is not None}
        named = list(dict.fromkeys(partitions)) or list(losses)
        if not named:
            click.echo("nothing to acknowledge: no partition shows a possible loss", err=True)
        # The controller says why there is nothing to acknowledge of a partition that shows nothing, or does not exist.
        refused = admin.acknowledge_loss({name: losses[name].last_epoch if name in losses else 0 for name in named})
    show(_LOSS_COLUMNS, [_loss_row(name, losses.get(name), refused.get(name)) for name in named], output=output)
    tell_refused(refused)


def _loss_row(name: str, loss: PossibleLoss | None, error: ReplicationError | None) -> list[Any]:
    told = None if error is None else str(error)
    if loss is None:
        return [name, None, None, None, None, None, told]
    since = datetime.fromtimestamp(loss.since_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    return [name, since, loss.from_offset, loss.records_max, loss.first_epoch, loss.last_epoch, told]


def _read(file: Path) -> dict[str, BrokerId | None]:
    try:
        read = msgspec.json.decode(file.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidRequest(f"{file} names no partitions: {error}") from error
    return {str(TopicPartition(each.topic, each.partition)): each.desiredLeader for each in read.partitions}


def _topics_of(names: Iterable[str]) -> list[str]:
    """The topics of the partitions of these names."""
    return sorted({name.rpartition("-")[0] for name in names})


def _known(admin: Admin, topics: Sequence[str] | None) -> dict[str, PartitionDescription]:
    """The partitions of these topics, as far as they exist. None stands for all topics."""
    found = map(described, admin.metadata(topics).topics)
    return {f"{topic.name}-{each.partition}": each for topic in found for each in topic.partitions}


def _electable(kind: ElectionKind, known: Mapping[str, PartitionDescription]) -> list[str]:
    if kind != "preferred":
        return [name for name, each in known.items() if each.leader is None]
    return [name for name, each in known.items() if each.replicas[0] in set(each.isr) - {each.leader}]


def _elect(
    admin: Admin,
    kind: ElectionKind,
    named: Sequence[str],
    desired: Mapping[str, BrokerId],
    *,
    without_table: bool,
) -> dict[str, ReplicationError]:
    """Elect with one request for each topic: a request takes few topics."""
    refused: dict[str, ReplicationError] = {}
    for topic in _topics_of(named):
        together = [name for name in named if name.rpartition("-")[0] == topic]
        leaders = {name: desired[name] for name in together if name in desired}
        refused |= admin.elect_leaders(kind, together, leaders, without_table=without_table)
    return refused


def _settled(admin: Admin, named: Sequence[str], refused: Collection[str]) -> dict[str, PartitionDescription]:
    """The partitions, once each that was not refused has a leader, or after ANSWERS_S: an election by logs waits for
    brokers to tell of theirs."""
    deadline_s = time.monotonic() + ANSWERS_S
    while True:
        known = _known(admin, _topics_of(named))
        waits = [name for name in named if name not in refused and name in known and known[name].leader is None]
        if not waits or time.monotonic() > deadline_s:
            return known
        time.sleep(LOOK_S)


def _row(
    name: str,
    before: Mapping[str, PartitionDescription],
    after: Mapping[str, PartitionDescription],
    refused: Mapping[str, ReplicationError],
) -> list[Any]:
    was, became = before.get(name), after.get(name)
    return [
        name,
        None if was is None else was.leader,
        None if became is None else became.leader,
        None if became is None else became.leader_epoch,
        None if became is None else became.elected,
        str(refused[name]) if name in refused else None,
    ]


def _ask(admin: Admin, named: Sequence[str], known: Mapping[str, PartitionDescription]) -> None:
    """Show what each replica has, and ask whether to elect all the same."""
    topics = _topics_of(name for name in named if name in known)
    found = admin.replicas(topics) if topics else []
    rows = [
        row
        for name in named
        if name in known
        for row in _candidates(name, known[name], [r for r in found if f"{r.topic}-{r.partition}" == name])
    ]
    show(_CANDIDATE_COLUMNS, rows, output="table", err=True)
    click.echo(
        "fewer records: than the longest log that is known here. What a replica that does not answer has is unknown, "
        "and lost if another leads.",
        err=True,
    )
    click.confirm("elect all the same?", abort=True, err=True)


def _candidates(name: str, partition: PartitionDescription, found: Sequence[ReplicaDescription]) -> list[list[Any]]:
    longest = max(((each.last_epoch, each.log_end) for each in found), default=(0, 0))[1]
    logs = {each.broker: each for each in found}
    rows: list[list[Any]] = []
    for broker in partition.replicas:
        eligible = broker in partition.isr or broker in partition.elr
        if broker in logs:
            log = logs[broker]
            rows.append([name, broker, eligible, log.last_epoch, log.log_end, max(0, longest - log.log_end)])
        else:
            rows.append([name, broker, eligible, None, None, "does not answer"])
    return rows
