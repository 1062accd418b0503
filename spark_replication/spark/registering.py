"""`sr.register`: it gives a session the format, and the tables as views."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from msgspec.structs import replace
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_replication.client.finding.bootstrap import parse_bootstrap
from spark_replication.client.finding.settings_file import overrides_of
from spark_replication.config import Settings
from spark_replication.errors import InvalidRequest
from spark_replication.mirror.delta.paths import mirror_path
from spark_replication.model import Scalar
from spark_replication.spark.datasource.data_source import ReplicatedLog
from spark_replication.spark.datasource.options import SECURITY, as_options
from spark_replication.spark.datasource.writing import ADAPTIVE_STREAMS
from spark_replication.spark.jvm import speaks_connect
from spark_replication.spark.views import register_views

FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
LACKING = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
IN_A_PIPELINE = "SESSION_MUTATION_IN_DECLARATIVE_PIPELINE"  # Spark's condition


def register(spark: SparkSession, bootstrap: str | None = None, *, mirror: str | None = None) -> None:
    """Register `format("replicated_log")` in a session of this process or of Spark Connect, for queries that name no
    bootstrap and no mirror themselves, and make the views of `views.register_views` of the tables below `mirror` (the
    mirror.path of a cluster). With neither argument, use the tables below the default data directory.

    Raises InvalidRequest if the session has no Delta, or if there are no tables, and InvalidConfig if `bootstrap` is
    none."""
    if bootstrap is not None:
        parse_bootstrap(bootstrap)
    path = mirror_path(mirror) if mirror is not None or bootstrap is None else None
    if path is not None:
        register_views(spark, path)
    register_format(spark, {"bootstrap": bootstrap, "mirror": None if bootstrap is not None else path})


def security_options(settings: Settings) -> dict[str, Scalar]:
    """The options by which queries speak to brokers of these settings, as clients. Secrets stay in the files that they
    name."""
    as_client = replace(
        settings,
        security_broker_token_file="",
        security_broker_principals="",
        security_super_users="",
        security_acls="",
        security_quotas=Settings().security_quotas,
        zookeeper_auth_file="",
    )
    return {name: value for name, value in overrides_of(as_client).items() if name.startswith(SECURITY)}


def require_our_python(command: str) -> None:
    """Raise InvalidRequest if the Python that Spark starts by `command`, for tasks and plans, does not have this
    package: every query would fail, and not say why."""
    found = shutil.which(command)
    if found is None or Path(found).absolute().parent == Path(sys.executable).absolute().parent:
        return
    asked = subprocess.run([found, "-c", "import spark_replication"], capture_output=True, check=False, cwd="/")
    if asked.returncode:
        raise InvalidRequest(
            f"Spark starts {found}, which does not have this package: set PYSPARK_PYTHON={sys.executable} before the "
            "session is made, or activate its environment"
        )


def require_servers_python(spark: SparkSession) -> None:
    """The same of the Python that the server of a session of Spark Connect starts: it is asked to run something of this
    package. Where no query may run, as in the definitions of a pipeline, nothing is known of it."""
    try:
        spark.range(1).mapInArrow(unchanged, "id long").collect()
    except PySparkException as error:
        missing = LACKING.search(str(error))
        if missing is not None:
            raise InvalidRequest(
                f"the Python that this session's server starts for tasks has no module {missing[1]}: install "
                "'spark_replication[connect]' in its environment, or start that server with another PYSPARK_PYTHON"
            ) from error


def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a server is asked to run: it finds this by its name, in this package."""
    yield from batches


def register_format(spark: SparkSession, defaults: Mapping[str, Scalar | None]) -> None:
    """Register the format. `defaults` are the options of queries that do not name them."""
    if speaks_connect(spark):
        require_servers_python(spark)
    else:
        require_our_python(spark.sparkContext.pythonExec)
    _set(spark, {FILTER_PUSHDOWN: "true", ADAPTIVE_STREAMS: "false"})
    told = type("RegisteredLog", (ReplicatedLog,), {"defaults": as_options(defaults)})
    spark.dataSource.register(told)


def _set(spark: SparkSession, wanted: Mapping[str, str]) -> None:
    """Set these settings unless they are set so. Raises InvalidRequest where a session takes none, as the one of a
    declarative pipeline while its definitions are read."""
    for name, value in wanted.items():
        if spark.conf.get(name, None) == value:
            continue
        try:
            spark.conf.set(name, value)
        except PySparkException as error:
            if not (error.getCondition() or "").startswith(IN_A_PIPELINE):
                raise
            lines = ", ".join(f'{each}: "{wanted[each]}"' for each in wanted)
            raise InvalidRequest(
                f"the definitions of a pipeline may not set {name}: add to `configuration` in its spark-pipeline.yml: "
                f"{lines}"
            ) from error
