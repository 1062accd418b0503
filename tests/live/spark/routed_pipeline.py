"""A pipeline that knows its cluster by the Delta tables alone, for tests to run where ZooKeeper cannot be reached.

Its executors send each row to the leader that the tables name (`sr.with_leader`, then code of its own within
mapInArrow); a stream copies what is there into another topic. It says `round N` with each round that has been sent.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyspark

import spark_replication as sr
from spark_replication.spark.datasource.data_source import FORMAT
from spark_replication.spark.session import build_session

SCHEMA = pa.schema([("id", pa.int64())])
ROWS = 2_000  # of a round


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("mirror", "token", "source", "target", "folder"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    told = parser.parse_args()
    security = {"security.mode": "token", "security.token.file": told.token}
    spark = build_session("routed", "local-cluster[2,1,1024]", {"spark.driver.memory": "512m"})
    sr.register(spark, mirror=told.mirror)

    def sent(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with sr.Producer(f"delta:{told.mirror}", security=security) as producer:
            for batch in batches:
                rows, partitions = pa.record_batch([batch["id"]], SCHEMA), batch["_partition"]
                answers = [
                    producer.send(told.source, rows.filter(pc.equal(partitions, each)), partition=each)
                    for each in pc.unique(partitions).to_pylist()
                ]
                acks = [answer.result() for answer in answers]
                yield pa.record_batch([[ack.last_offset - ack.base_offset + 1 for ack in acks]], ["rows"])

    for number in range(told.rounds):
        rows = spark.range(number * ROWS, (number + 1) * ROWS)
        routed = rows.transform(sr.with_leader(told.source, key="id", mirror=told.mirror))
        counts = routed.repartition(2, "_leader_host", "_leader_port", "_partition").mapInArrow(sent, "rows long")
        assert sum(count["rows"] for count in counts.collect()) == ROWS
        sys.stdout.write(f"round {number}\n")
        sys.stdout.flush()

    copy = (
        spark.readStream.format(FORMAT)
        .options(topic=told.source, startingOffsets="earliest", maxRecordsPerTrigger=str(3 * ROWS), **security)
        .load()
        .writeStream.format(FORMAT)
        .options(topic=told.target, partitionBy="id", checkpointLocation=f"{told.folder}/checkpoint", **security)
    )
    query = copy.trigger(availableNow=True).start()
    query.awaitTermination()
    sys.stdout.write("copied\n")
    sys.stdout.flush()
    application = spark.sparkContext.applicationId
    spark.stop()
    # What executors of a local cluster leave in Spark's own folder, the jars among it.
    shutil.rmtree(Path(pyspark.__file__).parent / "work" / application)


if __name__ == "__main__":
    main()
