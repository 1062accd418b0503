"""The main job: a cluster of brokers on Spark, a topic, a little load, and a live status until Ctrl-C.

make run                                   all of it on this machine
spark-submit jobs/start_cluster.py --config conf/cluster.toml --brokers 3
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pyarrow as pa
from pyspark.sql import SparkSession
from rich.console import Console
from rich.live import Live

import spark_replication as sr
from spark_replication.admin.status_view import status_line, status_view
from spark_replication.client.settings_file import read_settings
from spark_replication.config import parse_assignment
from spark_replication.spark.session import build_session, submitted_master

TOPIC = "orders"
SCHEMA = pa.schema([("id", pa.int64()), ("at_ms", pa.int64()), ("amount", pa.float64())])
ROWS_PER_BATCH = 100
BATCHES_PER_S = 10
REDRAW_S = 1.0
LOG_LINE_S = 5.0


def main() -> int:
    options = arguments()
    console = Console()
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    spark = None
    with suppress(KeyboardInterrupt):
        try:
            settings = read_settings(options.config, *(parse_assignment(text) for text in options.set))
            console.print(f"starting Spark, ZooKeeper and {options.brokers} brokers: about 20 s")
            spark = session(options)
            cluster = sr.SparkCluster.start(spark, settings, options.brokers)
            try:
                run(cluster, console, with_load=not options.no_load)
            finally:
                stop(cluster, console, detach_brokers=options.detach_brokers)
        except sr.errors.ReplicationError as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if spark is not None:
                spark.stop()
    return 0


def session(options: argparse.Namespace) -> SparkSession:
    """Made aside: on the main thread Spark would take Ctrl-C, and cancel the guardians that are to stop the brokers."""
    master = options.master or submitted_master() or f"local[{options.brokers + 2}]"
    with ThreadPoolExecutor(1) as aside:
        return aside.submit(build_session, "spark_replication", master).result()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="conf/local.toml", help="TOML file of settings (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, over the file's")
    parser.add_argument("--brokers", type=int, default=3, help="how many (default: %(default)s)")
    parser.add_argument("--master", help="Spark's; default: what spark-submit says, else local[brokers + 2]")
    parser.add_argument("--no-load", action="store_true", help="no topic, no load")
    parser.add_argument("--detach-brokers", action="store_true", help="on Ctrl-C leave the brokers to the next driver")
    return parser.parse_args()


def run(cluster: sr.SparkCluster, console: Console, *, with_load: bool) -> None:
    explain(cluster, console, with_load=with_load)
    stopping = threading.Event()
    load = threading.Thread(target=produce, args=(cluster, stopping), daemon=True)
    if with_load:
        load.start()
    try:
        watch(cluster, console)
    finally:
        stopping.set()
        if with_load:
            load.join()


def explain(cluster: sr.SparkCluster, console: Console, *, with_load: bool) -> None:
    console.print(
        f"""
brokers     {cluster.bootstrap}
zookeeper   {cluster.zookeeper}
data        {cluster.directory}
mirror      {cluster.mirror_path}  (Delta: partitions)

from another terminal:
  .venv/bin/spark-replication partitions --bootstrap {cluster.zookeeper}
  .venv/bin/spark-replication consume {TOPIC} --bootstrap {cluster.zookeeper} --max-rows 5
from Python:
  import spark_replication as sr
  for batch in sr.Reader("{cluster.zookeeper}").read("{TOPIC}"): print(batch.batch)
try: kill -9 one of the pids below, and watch its partitions move{f"; {TOPIC} keeps growing" if with_load else ""}.
Ctrl-C stops everything.
""",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def produce(cluster: sr.SparkCluster, stopping: threading.Event) -> None:
    """A little load, so that there is something to see."""
    if TOPIC not in {topic.name for topic in cluster.admin.describe_topics()}:
        cluster.admin.create_topic(TOPIC, SCHEMA, partitions=3)
    number = 0
    with sr.Producer(cluster.zookeeper, security=cluster.security) as producer:
        while not stopping.wait(1 / BATCHES_PER_S):
            ids = range(number, number + ROWS_PER_BATCH)
            now = [int(time.time() * 1000)] * ROWS_PER_BATCH
            batch = pa.record_batch([pa.array(ids), pa.array(now), pa.array([i * 0.01 for i in ids])], schema=SCHEMA)
            producer.send(TOPIC, batch, partition=number // ROWS_PER_BATCH % 3)
            number += ROWS_PER_BATCH


def watch(cluster: sr.SparkCluster, console: Console) -> None:
    """Until Ctrl-C."""
    if not console.is_terminal:
        while True:
            console.print(status_line(cluster.status()), markup=False, highlight=False, soft_wrap=True)
            time.sleep(LOG_LINE_S)
    with Live(status_view(cluster.status()), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(REDRAW_S)
            live.update(status_view(cluster.status()), refresh=True)


def stop(cluster: sr.SparkCluster, console: Console, *, detach_brokers: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half of it behind
    if detach_brokers:
        console.print("leaving the brokers to the next driver")
        cluster.leave()
    else:
        console.print("stopping brokers, controller and ZooKeeper")
        cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
