"""A driver that registers a cluster, asks for its views, and writes, reads and streams a topic, for tests to run: by a
session of this process, or of Spark Connect, whose server it starts."""

from __future__ import annotations

import argparse
import os

from pyspark.sql import SparkSession

import spark_replication as sr
from spark_replication.spark.datasource.data_source import FORMAT
from spark_replication.spark.session import DELTA_EXTENSION, delta_jars
from tests.waiting import eventually

MASTER = "local[2]"
LEADERS = (
    "SELECT count(*) AS leaders FROM routes JOIN leaderships USING (topic, partition, leader) "
    "WHERE until IS NULL AND topic = '{}'"
)


def connected() -> SparkSession:
    os.environ["SPARK_TESTING"] = "1"  # Spark then takes a port of the system
    settings = {
        "spark.jars": ",".join(map(str, delta_jars())),
        "spark.sql.extensions": DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.remote(MASTER)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "mirror", "topic", "copy", "folder"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--connect", action="store_true")
    told = parser.parse_args()
    spark = connected() if told.connect else sr.session(master=MASTER, config={"spark.driver.memory": "512m"})
    sr.register(spark, told.bootstrap, mirror=told.mirror or None)
    leaders = spark.sql(LEADERS.format(told.topic))
    eventually(lambda: leaders.collect()[0]["leaders"] == 3, "the tables have the topic")
    ids = spark.range(100).selectExpr("id", "id / 4.0 AS amount", "CAST(id AS STRING) AS text")
    ids.selectExpr("id", "CAST(amount AS DOUBLE) AS amount", "text").write.format(FORMAT).option(
        "topic", told.topic
    ).mode("append").save()
    stream = spark.readStream.format(FORMAT).options(subscribe=told.topic, startingOffsets="earliest").load()
    query = (
        stream.writeStream.format(FORMAT)
        .options(topic=told.copy, checkpointLocation=f"{told.folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    both = spark.read.format(FORMAT).option("subscribe", f"{told.topic},{told.copy}").load()
    counts = {row["_topic"]: row["count"] for row in both.groupBy("_topic").count().collect()}
    print(f"{counts[told.topic]} rows, {counts[told.copy]} copied")  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main()
