"""The main job: Spark, the cluster, a little load and a live status, until a signal. It starts and stops all in order.

A signal sets an event that every step looks at, so nothing is left half done: each step stops what it began. Log lines
go to <data.dir>/driver.log, and warnings to standard error, too.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import SparkSession
from rich.console import Console, RenderableType
from rich.live import Live

import spark_replication as sr
from spark_replication.admin.jobs.job_options import given_of
from spark_replication.admin.jobs.order_load import TOPIC, OrderLoad, Rate, topic_partitions
from spark_replication.admin.jobs.status_view import event_lines, shown_partitions, status_line, status_view
from spark_replication.admin.jobs.traffic import TrafficWatch, watching
from spark_replication.errors import StartGivenUp
from spark_replication.process.logs import log_to_file
from spark_replication.process.memory import Collecting
from spark_replication.spark.cluster_file import make_data_directory
from spark_replication.spark.session import build_session, end_session, submitted_master
from spark_replication.tables.places import table_uri

LOG_FILE = "driver.log"
PARTITIONS = 3
FLUSH_S = 10  # soon enough for whoever looks
TABLE = {"table": True, "table.flush.ms": FLUSH_S * 1_000}
LOAD = Rate(rows=None, seconds=None, rows_per_s=1_000, batch_rows=100)
REDRAW_S = 1.0
LOG_LINE_S = 5.0
LOAD_END_S = 30.0  # for what it has sent to be answered

log = logging.getLogger(__name__)


def run_cluster(options: argparse.Namespace, stopping: threading.Event) -> None:
    """Run the cluster until `stopping` is set. Raises StartGivenUp if it is set before there is a cluster."""
    given = given_of(options)
    log_to_file(make_data_directory(given.settings) / LOG_FILE, process="driver")
    log.info("this is driver %d", os.getpid())
    Collecting().start()
    console = Console()
    _say(console, f"starting Spark, ZooKeeper and {options.brokers} brokers: about 20 s")
    try:
        with _session(options, stopping) as spark:
            cluster = sr.SparkCluster.start(
                spark,
                given,
                options.brokers,
                wanted=lambda: not stopping.is_set(),
                detach_brokers=options.detach_brokers,
            )
            try:
                serve(cluster, console, stopping, options)
            finally:
                left = "leaving the brokers to the next driver"
                _say(console, left if options.detach_brokers else "stopping brokers, controller and ZooKeeper")
                cluster.end(detach_brokers=options.detach_brokers)
    except StartGivenUp:
        _say(console, "the start was given up: what had started is stopped")
        raise


@contextlib.contextmanager
def _session(options: argparse.Namespace, stopping: threading.Event) -> Iterator[SparkSession]:
    """Build the Spark session on another thread: on the main thread Spark would take Ctrl-C, and cancel the guardians
    that are to stop the brokers."""
    if stopping.is_set():
        raise StartGivenUp("it was stopped before Spark was started")
    master = options.master or submitted_master() or f"local[{options.brokers + 1}]"
    with ThreadPoolExecutor(1) as aside:
        spark = aside.submit(build_session, "spark_replication", master).result()
    try:
        yield spark
    finally:
        end_session(spark)


def serve(cluster: sr.SparkCluster, console: Console, stopping: threading.Event, options: argparse.Namespace) -> None:
    _say(console, introduction(cluster, with_load=not options.no_load))
    load = threading.Thread(target=_produce, args=(cluster, stopping), name="load", daemon=True)
    if not options.no_load:
        load.start()
    try:
        _watch(cluster, console, stopping)
    finally:
        stopping.set()
        if load.ident is not None:
            load.join(LOAD_END_S)


def introduction(cluster: sr.SparkCluster, *, with_load: bool) -> str:
    where, table = cluster.zookeeper, table_uri(cluster.settings.table_path, TOPIC)
    return f"""
page        {cluster.page or "none: see the log"}
brokers     {cluster.bootstrap}
zookeeper   {where}
data        {cluster.directory}
log         {cluster.directory / LOG_FILE}
mirror      {cluster.mirror_path}  (Delta: partitions, brokers, topics, events, status)
table       {table}  (Delta: the {TOPIC} themselves, {FLUSH_S} s after they came)

from another terminal:
  export SPARK_REPLICATION_BOOTSTRAP={where}
  .venv/bin/spark-replication partitions
  .venv/bin/spark-replication consume {TOPIC} -n 5
  .venv/bin/spark-replication table status {TOPIC}
  .venv/bin/python jobs/read_orders.py --from latest --follow
from Python, or a notebook whose kernel is .venv/bin/python:
  import spark_replication as sr
  sr.connect("{where}")  # how the cluster is; jobs/notebooks/tour.py shows more
  reader = sr.Reader("{where}")
  next(reader.read("{TOPIC}", partition=0)).batch.to_pandas()
  from deltalake import DeltaTable, QueryBuilder
  orders = QueryBuilder().register("orders", DeltaTable("{table}"))
  orders.execute("SELECT _partition, count(*), max(_offset) FROM orders GROUP BY _partition").read_all()
try: kill -9 one of the pids below, and watch its partitions move{f"; {TOPIC} keeps growing" if with_load else ""}.
Ctrl-C stops everything.
"""


def _produce(cluster: sr.SparkCluster, stopping: threading.Event) -> None:
    """Produce a little load, so that there is something to see. The cluster goes on, whatever ends the load."""
    try:
        partitions = topic_partitions(cluster.admin, TOPIC, PARTITIONS, TABLE)
        with sr.Producer(cluster.zookeeper, security=cluster.security) as producer:
            produced = OrderLoad(producer, TOPIC, partitions, LOAD).run(stopping, lambda _produced: None)
        if produced.error is not None:
            log.warning("the load has ended: %s", produced.error)
    except sr.errors.ReplicationError as error:
        log.warning("the load has ended: %s", error)


def _watch(cluster: sr.SparkCluster, console: Console, stopping: threading.Event) -> None:
    with watching(cluster.admin) as traffic:
        if console.is_terminal:
            _redraw(cluster, traffic, console, stopping)
        else:
            _log(cluster, traffic, console, stopping)


def _redraw(cluster: sr.SparkCluster, traffic: TrafficWatch, console: Console, stopping: threading.Event) -> None:
    def view() -> RenderableType:
        status = cluster.status()
        return status_view(status, traffic.now(shown_partitions(status)))

    with Live(view(), console=console, auto_refresh=False) as live:
        while not stopping.wait(REDRAW_S):
            _require_spark(cluster)
            live.update(view(), refresh=True)


def _log(cluster: sr.SparkCluster, traffic: TrafficWatch, console: Console, stopping: threading.Event) -> None:
    told = -1
    while not stopping.is_set():
        _require_spark(cluster)
        found = traffic.now(())
        lines, told = event_lines(found, told)
        for line in (*lines, status_line(cluster.status(), found)):
            _say(console, line)
        stopping.wait(LOG_LINE_S)


def _require_spark(cluster: sr.SparkCluster) -> None:
    """Raise the cluster's failure, such as SparkGone: a supervisor restarts this job, with a session that can guard."""
    if cluster.failure is not None:
        raise cluster.failure


def _say(console: Console, text: str) -> None:
    """Print a line. Its reader may be gone (on Ctrl-C spark-submit's JVM goes first), which rich turns into SystemExit:
    this job must go on all the same."""
    with contextlib.suppress(BrokenPipeError, SystemExit):
        console.print(text, markup=False, highlight=False, soft_wrap=True)
