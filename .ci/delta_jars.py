"""Fetch the jars of Delta Lake into `<venv>/delta-jars`.

It holds the 7 jars that delta-spark needs beside Spark's own, each checked against its digest; their own dependencies
are in Spark already, so nothing is resolved transitively.
"""

import hashlib
import sys
from pathlib import Path

from spark_replication.errors import StartFailed
from spark_replication.process.java import Module, fetch

DIRECTORY = Path(sys.prefix) / "delta-jars"
ATTEMPTS_MAX = 3

#: Each with its SHA-256.
JARS = {
    Module("io.delta", "delta-spark_4.2_2.13", "4.4.0"): (
        "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"
    ),
    Module("io.delta", "delta-storage", "4.4.0"): "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    Module("io.delta", "delta-kernel-api", "4.4.0"): (
        "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11"
    ),
    Module("io.delta", "delta-kernel-defaults", "4.4.0"): (
        "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b"
    ),
    Module("io.delta", "delta-kernel-unitycatalog", "4.4.0"): (
        "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa"
    ),
    Module("io.unitycatalog", "unitycatalog-client", "0.6.0"): (
        "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19"
    ),
    Module("io.unitycatalog", "unitycatalog-hadoop", "0.6.0"): (
        "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150"
    ),
}


def complaint(directory: Path) -> str | None:
    """What is wrong with the jars in `directory`, or None if all are there and whole."""
    for jar, digest in JARS.items():
        path = directory / jar.file_name
        if not path.is_file():
            return f"{jar.file_name} is missing"
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            return f"{jar.file_name} is not the file it should be (its digest differs)"
    return None


def main() -> int:
    if complaint(DIRECTORY) is None:
        return 0
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            fetch(JARS, DIRECTORY, complaint)
        except StartFailed as error:
            print(f"Delta's jars, attempt {attempt} of {ATTEMPTS_MAX}: {error.message}", file=sys.stderr)
        else:
            return 0
    print(
        "Delta's jars could not be fetched from the public Maven repository: check that Java can reach the network "
        '(behind a proxy: export JAVA_TOOL_OPTIONS="-Dhttps.proxyHost=… -Dhttps.proxyPort=…"), '
        "then run `make setup` again.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
