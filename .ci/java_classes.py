"""Keep the classes that Spark loads as Java has parsed them, in `<venv>/spark-classes.jsa`: each start takes less than
half of its processor time.

A session does once what the main job's does, and its JVM writes the archive as it ends. Nothing needs it: without it,
with another Java or with other jars, Java reads the jars again.
"""

import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from spark_replication.errors import StartFailed
from spark_replication.spark.session import CLASSES, build_session, end_session, recording_classes

WRITE_TIMEOUT_S = 60.0


def record(archive: Path, directory: Path) -> None:
    spark = build_session("classes", "local[2]", recording_classes(archive))
    spark.range(4).write.format("delta").save(str(directory / "table"))
    spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(list).collect()
    end_session(spark, WRITE_TIMEOUT_S)


def main() -> int:
    archive = Path(sys.prefix) / CLASSES
    archive.unlink(missing_ok=True)
    with TemporaryDirectory(dir=archive.parent) as directory, suppress(StartFailed, FileNotFoundError):
        written = Path(directory) / CLASSES
        record(written, Path(directory))
        written.rename(archive)  # there whole, or not at all
    if not archive.exists():
        print("Spark's classes could not be kept: it works all the same, and starts more slowly.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
