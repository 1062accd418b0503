"""Fetch the jars of Delta Lake into `<venv>/delta-jars`, by the Ivy that pyspark ships: no Maven is needed.

The directory appears whole or not at all. It holds the 7 jars that delta-spark needs beside Spark's own, each checked
against its digest; their own dependencies are in Spark already, so nothing is resolved transitively.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

DIRECTORY = Path(sys.prefix) / "delta-jars"
ATTEMPTS_MAX = 3
ATTEMPT_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Jar:
    organisation: str
    module: str
    revision: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.module}-{self.revision}.jar"


JARS = (
    Jar(
        "io.delta", "delta-spark_4.2_2.13", "4.4.0", "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"
    ),
    Jar("io.delta", "delta-storage", "4.4.0", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
    Jar("io.delta", "delta-kernel-api", "4.4.0", "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11"),
    Jar(
        "io.delta", "delta-kernel-defaults", "4.4.0", "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b"
    ),
    Jar(
        "io.delta",
        "delta-kernel-unitycatalog",
        "4.4.0",
        "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
    ),
    Jar(
        "io.unitycatalog",
        "unitycatalog-client",
        "0.6.0",
        "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19",
    ),
    Jar(
        "io.unitycatalog",
        "unitycatalog-hadoop",
        "0.6.0",
        "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150",
    ),
)


class FetchFailed(Exception):
    """The jars are not there. The text says why, in one line."""


def complaint(directory: Path) -> str | None:
    """What is wrong with the jars in `directory`, or None if all are there and whole."""
    for jar in JARS:
        path = directory / jar.file_name
        if not path.is_file():
            return f"{jar.file_name} is missing"
        if hashlib.sha256(path.read_bytes()).hexdigest() != jar.sha256:
            return f"{jar.file_name} is not the file it should be (its digest differs)"
    return None


def ivy_module() -> str:
    dependencies = "\n".join(
        f'    <dependency org="{jar.organisation}" name="{jar.module}" rev="{jar.revision}"'
        ' conf="default->master" transitive="false"/>'
        for jar in JARS
    )
    return f"""<ivy-module version="2.0">
  <info organisation="spark_replication" module="delta-jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


def ivy_jar() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise FetchFailed("pyspark is not installed")
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise FetchFailed("pyspark ships no ivy-*.jar any more")
    return found[-1]


def java() -> str:
    """The Java that pyspark will use, too."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def proxy_options() -> list[str]:
    """The JVM does not read `https_proxy`, which pip and everything else here does."""
    proxy = urlsplit(getproxies().get("https", ""))
    if proxy.hostname is None:
        return []
    return [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 80}"]


def retrieve(work: Path) -> Path:
    """Download the jars into `work`. The cache is in there, too: an old one elsewhere cannot interfere."""
    (work / "ivy.xml").write_text(ivy_module())
    jars = work / "jars"
    command = [java(), *proxy_options(), f"-Divy.default.ivy.user.dir={work / 'ivy'}"]
    command += ["-cp", str(ivy_jar()), "org.apache.ivy.Main", "-warn"]
    command += ["-ivy", str(work / "ivy.xml"), "-cache", str(work / "cache"), "-confs", "default", "-types", "jar"]
    command += ["-retrieve", str(jars / "[artifact]-[revision].[ext]")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ATTEMPT_TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise FetchFailed(f"there is no Java at {command[0]}") from error
    except subprocess.TimeoutExpired as error:
        raise FetchFailed(f"no answer within {ATTEMPT_TIMEOUT_S} s") from error
    wrong = complaint(jars)
    if done.returncode != 0 or wrong is not None:
        print(done.stdout + done.stderr, file=sys.stderr)
        raise FetchFailed(wrong or f"Ivy ended with exit code {done.returncode}")
    return jars


def fetch(directory: Path) -> None:
    # Beside the target, so that the rename stays within one file system.
    work = Path(tempfile.mkdtemp(prefix=".delta-jars-", dir=directory.parent))
    try:
        jars = retrieve(work)
        shutil.rmtree(directory, ignore_errors=True)
        jars.rename(directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main() -> int:
    if complaint(DIRECTORY) is None:
        return 0
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            fetch(DIRECTORY)
        except FetchFailed as error:
            print(f"Delta's jars, attempt {attempt} of {ATTEMPTS_MAX}: {error}", file=sys.stderr)
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
