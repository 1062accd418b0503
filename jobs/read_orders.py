"""Orders of a topic, added up by partition: what is there, or with --follow what comes, until Ctrl-C.

python jobs/read_orders.py --bootstrap zk://127.0.0.1:2181/spark_replication --from latest --follow
spark-submit jobs/read_orders.py --bootstrap zk://127.0.0.1:2181/spark_replication --into /data/orders --follow

--into: a stream of them into a Delta table, as a Spark job. Stopped or killed, it goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from threading import Event
from typing import cast, get_args

import spark_replication as sr
from spark_replication.admin.cli.listing import show
from spark_replication.admin.jobs.job_options import (
    add_bootstrap,
    add_settings,
    parser_of,
    rate,
    security_of,
    settings_of,
)
from spark_replication.admin.jobs.order_load import TOPIC
from spark_replication.admin.jobs.order_reading import OrderReading, Start, Sum
from spark_replication.core.replica.read_start import time_in_ms
from spark_replication.model import NamedOffset
from spark_replication.process.stop_signals import on_stop_signals


def main() -> int:
    options = arguments()
    stopping = Event()
    on_stop_signals(stopping.set)
    try:
        if options.into:
            return stream(options, stopping)
        security = security_of(options)
        with closing(sr.Admin(options.bootstrap, security=security)) as admin:
            (topic,) = admin.describe_topics([options.topic])
        partitions = options.partition or [found.partition for found in topic.partitions]
        with sr.Reader(options.bootstrap, security=security) as reader:
            reading = OrderReading(reader, options.topic, partitions, options.start)
            sums = reading.run(stopping, tell, follow=options.follow)
    except sr.errors.ReplicationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    columns = ("partition", "rows", "amount", "first_offset", "last_offset")
    rows = [[each.partition, each.rows, round(each.amount, 2), each.first_offset, each.last_offset] for each in sums]
    show(columns, rows, output=options.format)
    return 0


def stream(options: argparse.Namespace, stopping: Event) -> int:
    from spark_replication.admin.jobs.order_pipeline import orders_into, session

    start = options_of(options.start)
    with session("read orders", options.bootstrap, settings_of(options)) as spark:
        into = orders_into(spark, options.into, topic=options.topic, options=start, follow=options.follow)
        into.run(stopping, tell_rows)
        rows = into.rows_there()
    print(f"{rows} rows of {options.topic} are in {options.into}")
    return 0


def options_of(start: Start) -> dict[str, str]:
    """Of the source."""
    if start.time_ms is not None:
        return {"startingTimestamp": str(start.time_ms)}
    if isinstance(start.offset, int):
        raise sr.errors.InvalidRequest(f"--from {start.offset} --into: a table begins at earliest, latest or a time")
    return {"startingOffsets": start.offset}


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    add_bootstrap(parser)
    add_settings(parser, None)
    parser.add_argument("--topic", default=TOPIC, help="default: %(default)s")
    parser.add_argument("--partition", "-p", type=rate, action="append", help="may be given several times; else all")
    parser.add_argument(
        "--from",
        dest="start",
        type=start,
        default=Start("earliest"),
        help="an offset, earliest, latest, or a time as 2026-11-21T10:00:00Z (default: earliest)",
    )
    parser.add_argument("--follow", "-f", action="store_true", help="go on with what comes, until Ctrl-C")
    parser.add_argument("--into", metavar="PATH", help="a Delta table, by Spark; needs no --partition")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="of the sums at the end")
    return parser.parse_args()


def start(text: str) -> Start:
    if text in get_args(NamedOffset):
        return Start(cast(NamedOffset, text))
    if text.isdecimal():
        return Start(int(text))
    try:
        return Start(time_ms=time_in_ms(datetime.fromisoformat(text)))
    except (ValueError, sr.errors.InvalidRequest) as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no offset, no name and no time with a zone, such as 2026-11-21T10:00:00Z"
        ) from error


def tell_rows(rows: int, behind: int | None) -> None:
    sys.stderr.write("it starts\n" if behind is None else f"{rows} rows read, {behind} behind\n")


def tell(sums: Sequence[Sum]) -> None:
    """On standard error, beside the sums."""
    newest = max((each.newest_ms for each in sums if each.newest_ms is not None), default=None)
    age = "" if newest is None else f", the newest {(time.time() * 1000 - newest) / 1000:.1f} s old"
    sys.stderr.write(f"{sum(each.rows for each in sums)} rows read, {sum(each.behind for each in sums)} behind{age}\n")


if __name__ == "__main__":
    sys.exit(main())
