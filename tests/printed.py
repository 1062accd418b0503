"""What README and the guide print: their blocks of code, in the order of the page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "spark_replication" / "guide"
PAGES = (ROOT / "README.md", *sorted(GUIDE.rglob("*.md")))
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: str
    #: What stands behind the fence: python, toml, text (a picture), sh, or nothing, which is for a shell, too.
    language: str
    text: str

    @property
    def first(self) -> str:
        return self.text.strip().splitlines()[0].strip()

    def is_at(self, page: str, first: str) -> bool:
        return self.page == page and re.match(rf"{re.escape(first)}(?!\S)", self.first) is not None

    @property
    def commands(self) -> list[str]:
        """The lines of a block for a shell, without those that only say something."""
        if self.language not in ("", "sh"):
            return []
        return [
            line for line in self.text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")
        ]


def name_of(page: Path) -> str:
    return str(page.relative_to(GUIDE).with_suffix("")) if page.is_relative_to(GUIDE) else page.stem


def blocks_of(page: Path) -> Iterator[Block]:
    for _indent, language, text in _BLOCK.findall(page.read_text()):
        yield Block(name_of(page), language, textwrap.dedent(text))


BLOCKS = tuple(block for page in PAGES for block in blocks_of(page))


def printed(page: str, first: str) -> list[str]:
    """The commands of the block that begins so."""
    (block,) = (block for block in BLOCKS if block.is_at(page, first))
    return block.commands


_SECURED = "is for a cluster with security: tests/live/cluster/test_rotation.py types it"
_OPERATED = "is for a cluster that something has happened to: tests/live/spark/test_operations.py types it"
_RIGHTS = "is for a cluster with rights: tests/hosts/test_principals.py, tests/live/cluster/test_acls.py have such"
#: The blocks that tests/live/datasource/test_printed.py does not run, by page and first line, and who does.
NOT_RUN = {
    ("README", "make run"): "makes an environment: tests/live/spark/test_start_cluster.py runs what `make` runs then",
    ("start", "make run"): "as in README",
    ("start", "export"): "is for the orders of `make run`: tests/live/client/test_order_jobs.py has such",
    (
        "start",
        ".venv/bin/spark-replication topics tail orders",
    ): "waits for rows: tests/live/cluster/test_command_line.py types it",
    ("concepts", ".venv/bin/spark-replication scenario"): "takes minutes: tests/spec/test_scenario_files.py, tests/sim",
    ("deploy", "spark-submit"): "starts a cluster of its own: tests/live/spark/test_start_cluster.py",
    (
        "groups",
        "spark-replication start --directory cluster --detach",
    ): "starts a cluster of its own: tests/live/wheel/test_wheel.py types it",
    ("groups", "kill -9 $!"): "goes on with that",
    ("operate", "spark-replication partitions --leaderless"): _OPERATED,
    (
        "operate",
        "spark-replication reassign plan orders-3=1,2",
    ): "is for a partition whose replicas are lost for good: tests/live/cluster/test_dark_night.py types it",
    ("operate", "spark-replication partitions --possible-loss"): _OPERATED,
    (
        "operate",
        "spark-replication reassign plan --replication-factor 2",
    ): "is for a broker on Spark that is lost for good: tests/hosts/test_spark.py types it",
    ("operate", "spark-replication brokers"): "is for a broker that is lost: tests/live/cluster/test_reassignment.py",
    ("operate", "spark-replication reassign plan --add 4"): _OPERATED,
    ("operate", "spark-replication brokers drain 4"): _OPERATED,
    ("security", "spark-replication tokens add tokens root"): _SECURED,
    (
        "security",
        "spark-replication tokens add tokens alice --client-file alice.token --salted",
    ): "changes the file of no cluster: tests/unit/admin/test_tokens_command.py types it",
    ("security", "spark-replication acls add"): _RIGHTS,
    ("security", "spark-replication quotas set"): _RIGHTS,
    ("security", "security ="): "names a file of a cluster with security: tests/live/cluster/test_secured_clusters.py",
    ("security", "header ="): "asks a cluster with security: tests/live/cluster/test_secured_clusters.py does so",
    ("security", "spark-replication tokens add tokens alice --client-file alice.new"): _SECURED,
    (
        "spark",
        'spark = SparkSession.builder.remote("sc://host:15002").getOrCreate()',
    ): "asks a Spark Connect server: tests/live/datasource/test_connect.py has one",
    (
        "spark",
        "from pyspark import pipelines as dp",
    ): "is a pipeline's: tests/live/datasource/test_pipeline.py runs one",
    (
        "spark",
        ".venv/bin/python jobs/produce_orders.py",
    ): "tests/live/datasource/test_jobs.py runs both by spark-submit",
    (
        "topic-tables",
        "spark-replication start --directory lake --detach",
    ): "starts a cluster of its own: tests/live/wheel/test_wheel.py types it",
    ("topic-tables", "import pyarrow as pa"): "goes on with that",
    (
        "topic-tables",
        "spark-replication start --directory anew",
    ): "is for a cluster whose predecessor is gone: tests/live/wheel/test_wheel.py types it",
    ("tables", 'aws_region = "eu-central-1"'): "names an object store: tests/live/mirror/test_object_store.py has one",
}


def why_not_run(block: Block) -> str | None:
    """None if it is run."""
    return next((why for (page, first), why in NOT_RUN.items() if block.is_at(page, first)), None)
