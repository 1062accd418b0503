"""A Spark session with Delta, from the jars that `make setup` put beside the Python packages: it downloads nothing.

Where there are none, as after `pip install`, Spark fetches them by its own packages, the first time.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from spark_replication.errors import StartFailed
from spark_replication.process.java import COMPILE_QUICKLY, find_java

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
#: With what it depends on. `.ci/delta_jars.py` has them one by one.
DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
LOOPBACK = "127.0.0.1"
GATEWAY = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, whose JVM runs
UNTOLD_MASTER = "local[*]"  # what spark-submit takes where nobody names one
CLASSES = "spark-classes.jsa"  # in the virtual environment: Spark's classes, as Java has parsed them (`make setup`)
JVM_END_TIMEOUT_S = 20.0

_WITHOUT_A_WORD = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def session(
    app_name: str = "spark_replication", *, master: str | None = None, config: Mapping[str, str] = {}
) -> SparkSession:
    """A Spark session with Delta, as SparkClusters and streams into tables need it: that of spark-submit in a program
    that it runs, or else one on this machine.

    `config` are settings of Spark, over those chosen here. A session of this process that has Delta already is returned
    as it is. Raises StartFailed.
    """
    return build_session(app_name, master or submitted_master() or "local[*]", config)


def build_session(app_name: str, master: str = "local[*]", extra: Mapping[str, str] = {}) -> SparkSession:
    """As `session`, with this master."""
    running = SparkSession.getActiveSession()
    if running is not None and DELTA_EXTENSION not in (running.conf.get("spark.sql.extensions", "") or ""):
        raise StartFailed("a Spark session without Delta runs in this process: stop it first, or make it by sr.session")
    if GATEWAY not in os.environ:
        find_java("Spark")
    # Executors on this host must run the Python that has the project's packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    builder = SparkSession.builder.appName(app_name).master(master)
    settings = {**_jars(delta_jars()), **_DELTA, **_driver_settings(java_options()), **_local_settings(master), **extra}
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise StartFailed(f"Spark did not start: {error}. Is Java 17 or later there, as `make setup` asks?") from error
    except Py4JError as error:
        advice = ". Does a Master run there?" if master.startswith("spark://") else ""
        reason = java_reason(error).removesuffix(".")
        raise StartFailed(f"Spark did not start with master {master}: {reason}{advice}") from error


def end_session(spark: SparkSession, timeout_s: float = JVM_END_TIMEOUT_S) -> None:
    """End a session, with its JVM if this process started that: else the JVM would outlive this process for a while."""
    gateway = spark.sparkContext._gateway
    # On another thread: py4j waits for ever for a JVM that hangs, and raises where there is none.
    stopping = threading.Thread(target=_stop, args=(spark,), name="spark-stopping", daemon=True)
    stopping.start()
    stopping.join(timeout_s)
    jvm = getattr(gateway, "proc", None)
    if gateway is not None and jvm is not None:
        gateway.shutdown()
        with contextlib.suppress(BrokenPipeError):
            jvm.stdin.close()  # the JVM waits for this to end
        try:
            jvm.wait(timeout_s)
        except subprocess.TimeoutExpired:
            jvm.kill()
            jvm.wait()


def _stop(spark: SparkSession) -> None:
    with contextlib.suppress(Py4JError, PySparkException, OSError):
        spark.stop()


def java_reason(error: Exception) -> str:
    """The error that Java has thrown. py4j names its own call first, and Java's error behind it, after a colon."""
    lines = str(error).splitlines() or [""]
    thrown = next((line for line in lines if line.startswith(": ")), lines[0])
    return thrown.removeprefix(": ").rpartition("Exception: ")[2]


def delta_jars() -> list[Path]:
    """None after `pip install`."""
    return sorted((Path(sys.prefix) / "delta-jars").glob("*.jar"))


def _jars(jars: Sequence[Path]) -> dict[str, str]:
    """The settings by which driver and executors have Delta's jars."""
    if GATEWAY not in os.environ:
        return {"spark.jars": ",".join(map(str, jars))} if jars else {"spark.jars.packages": DELTA_PACKAGE}
    # spark-submit's JVM runs already: `spark.jars` hands jars to executors, and the driver sees only what its class
    # loader is given.
    SparkContext._ensure_initialized()
    jvm = SparkContext._jvm
    assert jvm is not None, "it is initialized"
    told = [jar for jar in SparkConf().get("spark.jars", "").split(",") if jar]
    names = {jar.rpartition("/")[2] for jar in told}
    if not jars and not any("delta-spark" in name for name in names):
        raise StartFailed(f"Delta's jars are not here: give spark-submit `--packages {DELTA_PACKAGE}`")
    missing = [jar for jar in jars if jar.name not in names]
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()  # spark-submit's, for the application
    for jar in missing:
        loader.addURL(jvm.java.net.URL(jar.as_uri()))
    return {"spark.jars": ",".join([*told, *map(str, missing)])}


_DELTA = {
    "spark.sql.extensions": DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # The tables are small: with Delta's default of 50 partitions a MERGE takes 7 to 27 s in place of 2.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "4",
    # Without it the data source cannot be told which partitions and offsets a query asks for.
    "spark.sql.python.filterPushdown.enabled": "true",
    # How often Spark looks again where executors were lost just as guardians were submitted.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    # How long the two sides of a result wait for each other: on a busy machine Spark's 15 s were too short.
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


def java_options() -> str:
    """The Java options of a driver. They name no garbage collector: extraJavaOptions may, and Java takes only one."""
    return " ".join((COMPILE_QUICKLY, *kept_classes()))


def kept_classes() -> tuple[str, ...]:
    """The options by which Spark's JVMs on this host use the archive of classes. Java passes over an archive that
    another Java has made, or that is of other jars."""
    archive = Path(sys.prefix) / CLASSES
    return (f'"-XX:SharedArchiveFile={archive}"', _WITHOUT_A_WORD) if archive.exists() else ()


def recording_classes(archive: Path) -> dict[str, str]:
    """The settings of a session whose JVM is to write the archive as it ends."""
    return _driver_settings(f'{COMPILE_QUICKLY} "-XX:ArchiveClassesAtExit={archive}" {_WITHOUT_A_WORD}')


def _driver_settings(options: str) -> dict[str, str]:
    """The settings that give the driver's JVM these options. Any extraJavaOptions come after them, and win."""
    return {"spark.driver.defaultJavaOptions": options}


def _local_settings(master: str) -> dict[str, str]:
    """The settings of a local master: on loopback, since everything is on this host, and closed to its other users.
    Executors elsewhere could not reach the driver there."""
    if not master.startswith("local"):
        return {}
    on_loopback = {"spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK}
    return {**on_loopback, "spark.authenticate": "true"} if makes_own_secret(master) else on_loopback


def makes_own_secret(master: str) -> bool:
    """Whether Spark itself makes the secret of spark.authenticate. Otherwise somebody has to."""
    return master in ("yarn", "local") or master.startswith("local[")


def submitted_master() -> str | None:
    """The master that spark-submit was given, by its options or a file of settings. None if it was given none, or if
    this is a plain Python process."""
    if GATEWAY not in os.environ:
        return None
    SparkContext._ensure_initialized()  # until then a SparkConf knows nothing of what the JVM was told
    master = SparkConf().get("spark.master")
    return None if master == UNTOLD_MASTER else master
