"""The contract of ports.TopicTable, of tables in an object store."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from spark_replication.mirror.delta.object_store import PATIENCE
from tests.contract.test_topic_table import *  # noqa: F403 (its stories, with another fixture)
from tests.contract.topic_table_cast import OfDelta, TableCast
from tests.live.mirror.object_store import BUCKET, ObjectStore

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    started = ObjectStore()
    yield started
    started.down()


@pytest.fixture  # type: ignore[no-redef]
def cast(store: ObjectStore) -> TableCast:
    return OfDelta(f"s3a://{BUCKET}/tables/{uuid.uuid4()}", {**PATIENCE, **store.options})
