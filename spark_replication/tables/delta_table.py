"""A topic's table as its writers share it, by delta-rs: no Spark, no JVM.

Rules:
- TB1: a commit is tried on the last version of the table, and stored only as the version after that. Before, this
  version is compared with the one that the caller has seen. delta-rs itself compares nothing: it is told not to try
  again.
- A refused commit is tried again if others have written the table meanwhile, and nobody has named its partitions. It
  keeps its id: one that was stored although its answer was lost is found by that, and not told as refused. So its files
  are never in the table twice, and its writer never removes them.
- Three transactions for each partition, `<topic_id>/<partition>`, `<topic_id>/<partition>/epoch` and
  `<topic_id>/<partition>/start`, are in the commit that moves them. Whatever is done to the table besides leaves them
  as they are.
- Files that were uploaded long ago are not committed: they may have been swept (`upkeep`), or are being swept.
- Properties of the table name its cluster and its topic_id. Another's table is refused, and left as it is. Whoever
  takes it over changes these properties, and names all ends and epochs by its own topic_id, in one commit (TB7): a
  commit that was made for the owner before is refused, and so is whatever is tried for it from then on.
- A property has an outline of the topic, as the controller knows it: what the topic can be made again from.
- A topic that was widened widens its table before the next commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from spark_replication.core.tables.restoring import TopicOutline, carried_over, is_to_be_taken_over
from spark_replication.core.tables.table import (
    RowRange,
    TableVersion,
    extended,
    is_begun_by,
    is_unchanged,
    require_continued,
    require_sealed,
    sealed,
)
from spark_replication.errors import InvalidSchema, StorageFailed, TableChanged, WrongCluster
from spark_replication.mirror.delta.object_store import PATIENCE, StoreOptions
from spark_replication.mirror.tables.history import HISTORY, RETENTION_OF_DATA, RETENTION_OF_LOG, as_interval
from spark_replication.model import Epoch, Offset, PartitionNumber, TableOrigin, encode, in_ranges, number_of
from spark_replication.ports import UploadedFile
from spark_replication.tables.folder import TableFolder
from spark_replication.tables.table_log import COMMIT_ID, LogMoved, TableLog
from spark_replication.tables.types import table_schema

OWNER = "spark_replication.cluster_id"
TOPIC_ID = "spark_replication.topic_id"
OUTLINE = "spark_replication.topic"
EPOCH, START = "epoch", "start"
ATTEMPTS_MAX = 50
COMMITS_PER_CHECKPOINT = 50
UPLOAD_AGE_MS_MAX = 6 * 3_600_000
NOBODYS = TableOrigin(cluster_id="None", topic_id="None")
#: What earlier versions need that were joined since: for streams and long queries.
DATA_HISTORY = timedelta(days=1)


class TableOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Whose table it is."""

    cluster_id: str
    topic: str
    topic_id: str

    def end(self, partition: PartitionNumber, end: Offset) -> Transaction:
        return Transaction(f"{self.topic_id}/{partition}", end)

    def epoch(self, partition: PartitionNumber, epoch: Epoch) -> Transaction:
        return Transaction(f"{self.topic_id}/{partition}/{EPOCH}", epoch)

    def start(self, partition: PartitionNumber, start: Offset) -> Transaction:
        return Transaction(f"{self.topic_id}/{partition}/{START}", start)


class ParquetUpload(msgspec.Struct, frozen=True, kw_only=True):
    """ports.UploadedFile."""

    path: str
    bytes: int
    written_ms: int
    row_count: int
    #: What Delta keeps of the columns' values, as JSON.
    statistics: str
    #: Of each column that the table is partitioned by, the value that all rows have, as Delta writes it.
    partition_values: Mapping[str, str | None] = {}


class TableLayout(NamedTuple):
    schema: pa.Schema
    partition_by: tuple[str, ...]


class DeltaTopicTable:
    """ports.TopicTable. Not thread-safe: each thread has its own."""

    def __init__(
        self,
        uri: str,
        owner: TableOwner,
        topic_schema: pa.Schema,
        store: StoreOptions = PATIENCE,
        *,
        now_ms: Callable[[], int],
        partition_by: Sequence[str] = (),
        outline: TopicOutline | None = None,
    ) -> None:
        """topic_schema: the newest one; a topic that was widened has another DeltaTopicTable from then on.

        partition_by: of a table that is made; one that is there stays as it is. InvalidSchema: there is no such table.
        outline: for `make` to write down; None: none is.
        """
        self.folder = TableFolder(uri, store)
        self._owner = owner
        self._topic_schema = topic_schema
        self._partition_by = tuple(partition_by)
        self._log = TableLog(self.folder)
        self._now_ms = now_ms
        #: As the table has it; empty for none.
        self.outline = "" if outline is None else encode(outline).decode()
        #: Whether the version that was last looked at has the outline of the topic.
        self.is_outlined = False
        table_schema(topic_schema, self._partition_by)  # which refuses what no table can have

    # ports.TopicTable

    def load(self) -> TableVersion:
        with self.folder.translated("say what is in it"):
            found = self._last()
        return TableVersion() if found is None else found[1]

    def commit(self, on: TableVersion, added: Sequence[RowRange], files: Sequence[UploadedFile]) -> TableVersion:
        require_continued(on, added)
        transactions = [
            *(self._owner.end(each.partition, each.end) for each in added),
            *(self._owner.epoch(each.partition, each.confirmed_epoch) for each in added),
            *(self._owner.start(each.partition, each.start) for each in added if is_begun_by(on, each)),
        ]
        partitions = [each.partition for each in added]
        uploads = [_of_ours(file) for file in files]
        return self._stored(on, partitions, transactions, uploads, lambda now, number: extended(now, number, added))

    def seal(self, on: TableVersion, epochs: Mapping[PartitionNumber, Epoch]) -> TableVersion:
        require_sealed(on, epochs)
        transactions = [self._owner.epoch(partition, epoch) for partition, epoch in epochs.items()]
        return self._stored(on, list(epochs), transactions, [], lambda now, number: sealed(now, number, epochs))

    def take_over(self, origin: TableOrigin) -> TableVersion:
        ours = TableOrigin(cluster_id=self._owner.cluster_id, topic_id=self._owner.topic_id)
        with self.folder.translated("let itself be taken over"):
            for _ in range(ATTEMPTS_MAX):
                opened = anybodys_table(self.folder)
                if opened is None:
                    raise StorageFailed(f"there is no table at {self.folder.uri} any more: put it back")
                if not is_to_be_taken_over(origin_of(opened) or NOBODYS, ours, origin, self.folder.uri):
                    return self.load()
                try:
                    found = self._log.transactions(str(opened.metadata().id), opened.version())
                except LogMoved:
                    continue
                after = carried_over(version_of(origin.topic_id, opened.version(), found))
                carried = [
                    *(self._owner.end(partition, end) for partition, end in after.ends.items()),
                    *(self._owner.epoch(partition, epoch) for partition, epoch in after.epochs.items()),
                    *(self._owner.start(partition, start) for partition, start in after.starts.items()),
                ]
                if self._set_properties(opened, {OWNER: ours.cluster_id, TOPIC_ID: ours.topic_id}, carried):
                    return self.load()
        raise StorageFailed(f"others wrote {self.folder.uri} {ATTEMPTS_MAX} times meanwhile: it is tried again")

    # Besides

    def make(self) -> None:
        """Make the table, unless it is there, and see that it has the outline of its topic."""
        with self.folder.translated("make it"):
            for _ in range(ATTEMPTS_MAX):
                opened, _version = self._last() or self._created()
                if self.is_outlined or self._set_properties(opened, {}, []):
                    return

    def layout(self) -> TableLayout:
        """How files are to be written. The table may be made in another layout meanwhile: then TableChanged refuses
        them."""
        with self.folder.translated("say how it is partitioned"):
            found = self._open()
        columns = self._partition_by if found is None else tuple(found.metadata().partition_columns)
        return TableLayout(table_schema(self._topic_schema, columns), columns)

    def opened(self) -> DeltaTable | None:
        """The last version, for whoever reads or tidies it; None: there is no table."""
        with self.folder.translated("open"):
            return self._open()

    def last(self) -> tuple[DeltaTable, TableVersion] | None:
        """The last version, and what it says of itself; None: there is no table."""
        with self.folder.translated("open"):
            return self._last()

    def _set_properties(
        self, opened: DeltaTable, properties: Mapping[str, str], transactions: list[Transaction]
    ) -> bool:
        """Set these, and the outline, in one commit. False: others have written the table meanwhile."""
        outline = {OUTLINE: self.outline} if self.outline else {}
        commit = CommitProperties({COMMIT_ID: uuid.uuid4().hex}, 0, transactions)
        try:
            opened.alter.set_table_properties(
                {**properties, **outline}, raise_if_not_exists=False, commit_properties=commit
            )
        except CommitFailedError:
            return False
        self.folder.sync_version(opened.version())
        return True

    def _stored(
        self,
        on: TableVersion,
        partitions: Sequence[PartitionNumber],
        transactions: list[Transaction],
        files: Sequence[ParquetUpload],
        after: Callable[[TableVersion, int], TableVersion],
    ) -> TableVersion:
        """after(before, number): the version that the commit makes."""
        commit_id = uuid.uuid4().hex
        properties = CommitProperties({COMMIT_ID: commit_id}, 0, transactions)
        tried_on: TableVersion | None = None
        refusal: CommitFailedError | None = None
        with self.folder.translated("store a commit"):
            for _ in range(ATTEMPTS_MAX):
                opened, now = self._last() or self._created()
                assert now.number is not None
                if not is_unchanged(on, now, partitions):
                    return self._found_as_stored(commit_id, tried_on, now, partitions)
                if refusal is not None and tried_on == now:
                    raise refusal  # nobody has written meanwhile: the next attempt would be refused, too
                self._refuse_unfit(opened, files)
                if self._widened(opened):
                    continue
                tried_on = now
                try:
                    opened.create_write_transaction(
                        [_action(file) for file in files],
                        mode="append",
                        schema=opened.schema(),
                        partition_by=opened.metadata().partition_columns,
                        commit_properties=properties,
                    )
                except CommitFailedError as error:
                    refusal = error
                    continue
                self.folder.sync_version(now.number + 1)
                return after(now, now.number + 1)
        raise StorageFailed(
            f"the table at {self.folder.uri} was written by others {ATTEMPTS_MAX} times meanwhile: it is tried again"
        )

    def _found_as_stored(
        self, commit_id: str, tried_on: TableVersion | None, now: TableVersion, partitions: Iterable[PartitionNumber]
    ) -> TableVersion:
        """The last version, if the commit is in it and only its answer was lost. TableChanged: it is not in it.
        StorageFailed: nobody can tell any more."""
        if tried_on is not None and tried_on.number is not None and now.number is not None:
            try:
                number = self._log.has_commit(commit_id, tried_on.number + 1, now.number)
            except LogMoved:
                raise StorageFailed(f"{self.folder.uri} no longer tells whether the commit was stored") from None
            if number is not None:
                self.folder.sync_version(number)
                return now
        raise TableChanged(
            f"partitions {in_ranges(partitions)} of {self.folder.uri} have changed by its version {now.number}: load "
            "the table again"
        )

    def _last(self) -> tuple[DeltaTable, TableVersion] | None:
        found = last_version(self.folder, self._owner, self._log)
        if found is not None:
            outline = found[0].metadata().configuration.get(OUTLINE, "")
            self.is_outlined = outline == self.outline or not self.outline
        return found

    def _open(self) -> DeltaTable | None:
        return open_table(self.folder, self._owner)

    def _created(self) -> tuple[DeltaTable, TableVersion]:
        """Make the table, unless somebody else has just done so."""
        try:
            DeltaTable.create(
                self.folder.uri,
                table_schema(self._topic_schema, self._partition_by),
                mode="error",
                partition_by=list(self._partition_by),
                name=self._owner.topic,
                configuration={
                    OWNER: self._owner.cluster_id,
                    TOPIC_ID: self._owner.topic_id,
                    **({OUTLINE: self.outline} if self.outline else {}),
                    "delta.checkpointInterval": str(COMMITS_PER_CHECKPOINT),
                    RETENTION_OF_DATA: as_interval(DATA_HISTORY),
                    RETENTION_OF_LOG: as_interval(HISTORY),
                },
                raise_if_key_not_exists=False,
                storage_options=self.folder.store,
            )
        except DeltaError:
            found = self._last()
            if found is None:
                raise
            return found
        self.folder.sync_version(0)
        made = self._last()
        if made is None:
            raise StorageFailed(f"the table at {self.folder.uri} was removed as it was made")
        return made

    def _widened(self, opened: DeltaTable) -> bool:
        """Add the columns that the table lacks. False: it has all."""
        there = {field.name: field for field in opened.schema().fields}
        columns = opened.metadata().partition_columns
        wanted = Schema.from_arrow(table_schema(self._topic_schema, columns)).fields
        for field in wanted:
            found = there.get(field.name)
            if found is not None and found.type != field.type:
                raise InvalidSchema(
                    f"column {field.name!r} of {self.folder.uri} is {found.type}, and its topic's is {field.type}"
                )
        missing = [field for field in wanted if field.name not in there]
        if not missing:
            return False
        try:
            opened.alter.add_columns(missing)
        except CommitFailedError:
            return True  # somebody else has changed the table: see again what is missing
        self.folder.sync_version(opened.version())
        return True

    def _refuse_unfit(self, opened: DeltaTable, files: Iterable[ParquetUpload]) -> None:
        """On each version anew: whoever sweeps makes a version first, so that no commit of before lands after it."""
        columns = opened.metadata().partition_columns
        now_ms = self._now_ms()
        for file in files:
            if set(file.partition_values) != set(columns):
                raise TableChanged(
                    f"{self.folder.uri} was made meanwhile, and is partitioned by ({', '.join(columns)}): write the "
                    "files again"
                )
            if now_ms - file.written_ms > UPLOAD_AGE_MS_MAX:
                raise TableChanged(
                    f"{file.path} has been waiting for its commit too long, and may have been swept: load the table "
                    "again, and write the files again"
                )


def open_table(folder: TableFolder, owner: TableOwner) -> DeltaTable | None:
    """The last version; None: there is no table. WrongCluster: it is another's.

    It is opened each time anew: a handle that was kept would not see that its table was removed and made again."""
    found = anybodys_table(folder)
    if found is None:
        return None
    origin = origin_of(found) or NOBODYS
    if (origin.cluster_id, origin.topic_id) != (owner.cluster_id, owner.topic_id):
        raise WrongCluster(
            f"the table at {folder.uri} is topic {origin.topic_id}'s of cluster {origin.cluster_id}, and this is topic "
            f"{owner.topic_id} of cluster {owner.cluster_id}: it stays as it is. Name another place (table.path), move "
            "it away, or make its topic again: spark-replication table restore --dry-run"
        )
    return found


def last_version(folder: TableFolder, owner: TableOwner, log: TableLog) -> tuple[DeltaTable, TableVersion] | None:
    """The last version, and what it says of itself; None: there is no table. WrongCluster: it is another's."""
    for _ in range(ATTEMPTS_MAX):
        opened = open_table(folder, owner)
        if opened is None:
            return None
        try:
            found = log.transactions(str(opened.metadata().id), opened.version())
        except LogMoved:
            continue
        return opened, version_of(owner.topic_id, opened.version(), found)
    raise StorageFailed(f"{folder.uri} has a log whose parts are missing: restore _delta_log")


def anybodys_table(folder: TableFolder) -> DeltaTable | None:
    """The last version, whosever it is; None: there is no table."""
    try:
        return DeltaTable(folder.uri, storage_options=folder.store)
    except TableNotFoundError:
        return None


def origin_of(opened: DeltaTable) -> TableOrigin | None:
    """The topic that the table names; None: it names none."""
    properties = opened.metadata().configuration
    cluster_id, topic_id = properties.get(OWNER), properties.get(TOPIC_ID)
    return None if cluster_id is None or topic_id is None else TableOrigin(cluster_id=cluster_id, topic_id=topic_id)


def version_of(topic_id: str, number: int, transactions: Mapping[str, int]) -> TableVersion:
    """What the version says of the partitions of this topic. transactions: all, by their names."""
    of_kind: dict[str, dict[PartitionNumber, int]] = {"": {}, EPOCH: {}, START: {}}
    for name, value in transactions.items():
        of_topic, _, rest = name.partition("/")
        partition, slash, kind = rest.partition("/")
        number_found = number_of(partition)
        if of_topic == topic_id and number_found is not None and kind in of_kind and bool(slash) == bool(kind):
            of_kind[kind][number_found] = value
    return TableVersion(number=number, ends=of_kind[""], epochs=of_kind[EPOCH], starts=of_kind[START])


def _of_ours(file: UploadedFile) -> ParquetUpload:
    assert isinstance(file, ParquetUpload), file
    return file


def _action(file: ParquetUpload) -> AddAction:
    values = dict(file.partition_values)
    return AddAction(file.path, file.bytes, values, file.written_ms, True, file.statistics)
