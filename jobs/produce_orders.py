"""Orders to a topic, at a steady rate, with acks=all; what is acknowledged is told each second. Exit 0: all of it was.

python jobs/produce_orders.py --bootstrap zk://127.0.0.1:2181/spark_replication --seconds 60 --rate 5000
spark-submit jobs/produce_orders.py --spark --bootstrap zk://127.0.0.1:2181/spark_replication --rows 10000000
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from threading import Event

import spark_replication as sr
from spark_replication.admin.jobs.job_options import (
    add_bootstrap,
    add_settings,
    count,
    parser_of,
    rate,
    security_of,
    settings_of,
)
from spark_replication.admin.jobs.order_load import TOPIC, OrderLoad, Produced, Rate, topic_partitions
from spark_replication.process.stop_signals import on_stop_signals


def main() -> int:
    options = arguments()
    stopping = Event()
    on_stop_signals(stopping.set)
    try:
        security = security_of(options)
        with closing(sr.Admin(options.bootstrap, security=security)) as admin:
            partitions = topic_partitions(admin, options.topic, options.partitions)
        if options.spark:
            return load_by_spark(options)
        asked = Rate(rows=options.rows, seconds=options.seconds, rows_per_s=options.rate, batch_rows=options.batch_rows)
        with sr.Producer(options.bootstrap, security=security) as producer:
            produced = OrderLoad(producer, options.topic, partitions, asked).run(stopping, tell)
    except sr.errors.ReplicationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    print(
        f"{produced.rows} rows acknowledged in {produced.batches} batches and {partitions} partitions of "
        f"{options.topic}: {produced.rows_per_s:.0f} a second for {produced.seconds:.1f} s"
    )
    if produced.error is not None:
        sys.stderr.write(f"error: {produced.refused_rows} rows have no acknowledgement: {produced.error}\n")
    return 0 if produced.error is None else 1


def load_by_spark(options: argparse.Namespace) -> int:
    """All rows at once, by tasks."""
    from spark_replication.admin.jobs.order_pipeline import load_orders, session

    with session("produce orders", options.bootstrap, settings_of(options)) as spark:
        began = time.monotonic()
        load_orders(spark, options.topic, options.rows)
        seconds = time.monotonic() - began
    print(f"{options.rows} rows acknowledged, {options.rows / seconds:.0f} a second for {seconds:.1f} s")
    return 0


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    add_bootstrap(parser)
    add_settings(parser, None)
    parser.add_argument("--topic", default=TOPIC, help="made if there is none (default: %(default)s)")
    parser.add_argument("--partitions", type=count, default=3, help="of a topic that is made (default: %(default)s)")
    parser.add_argument("--rows", type=count, help="how many; without it and --seconds: until Ctrl-C")
    parser.add_argument("--seconds", type=count, help="for how long")
    parser.add_argument("--rate", type=rate, default=1_000, help="rows a second, 0 = no limit (default: %(default)s)")
    parser.add_argument("--batch-rows", type=count, default=100, help="rows of a batch (default: %(default)s)")
    parser.add_argument("--spark", action="store_true", help="as a Spark job: --rows at once, by many tasks")
    options = parser.parse_args()
    if options.spark and options.rows is None:
        parser.error("--spark needs --rows: a job has an end")
    return options


def tell(produced: Produced) -> None:
    print(
        f"{produced.rows} rows acknowledged, {produced.rows_per_s:.0f} a second, slowest {produced.slowest_ms:.0f} ms",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
