"""Java: where it is, Spark's jars, and others that Ivy fetches."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

from spark_replication.errors import StartFailed

# Finds Java, which ZooKeeper and Spark need, with one error message for both.

# For JVMs that live for minutes beside others: compiling their code well would take most of their CPU.
COMPILE_QUICKLY = "-XX:TieredStopAtLevel=1"
QUICK_START = (COMPILE_QUICKLY, "-XX:+UseSerialGC")
JAVA_INSTALL = "install Java 17 (apt-get install openjdk-17-jre-headless), or set JAVA_HOME"


def find_java(who: str) -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if java is None:
        raise StartFailed(f"{who} needs Java, and there is none{f' in {home}' if home else ''}: {JAVA_INSTALL}")
    return java


# Jars that Spark ships and that serve more than Spark: ZooKeeper's server, Ivy, a compiler.


def spark_jar(name: str, *, otherwise: str = "") -> Path:
    """The jar of this name: beside pyspark, or in SPARK_HOME, since under spark-submit pyspark is a zip file. Raises
    StartFailed; `otherwise` says what else its caller could use."""
    found = find_spec("pyspark")
    homes = [Path(found.origin).parent] if found is not None and found.origin is not None else []
    if "SPARK_HOME" in os.environ:
        homes.append(Path(os.environ["SPARK_HOME"]))
    for home in homes:
        jars = sorted((home / "jars").glob(f"{name}-[0-9]*.jar"))
        if jars:
            return jars[-1]
    searched = ", ".join(map(str, homes)) or "any pyspark"
    raise StartFailed(f"no jar of {name} in {searched}: install pyspark, or set SPARK_HOME{otherwise}")


# Fetches jars from the public Maven repository, by the Ivy that pyspark ships: no Maven is needed.

TIMEOUT_S = 300.0


class Module(NamedTuple):
    organisation: str
    name: str
    revision: str
    #: Fetch what it depends on at run time, too.
    transitive: bool = False

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.revision}.jar"


def fetch(modules: Iterable[Module], directory: Path, complaint: Callable[[Path], str | None]) -> None:
    """Fetch the jars of these modules into `directory`, which appears whole or not at all. `complaint` says what is
    wrong with the fetched jars, and None if nothing is. Raises StartFailed."""
    # Beside the target, so that the rename stays within one file system.
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as folder:
        work = Path(folder)
        output = _retrieve(modules, work)
        jars = work / "jars"
        if (wrong := complaint(jars)) is not None:
            raise StartFailed(f"{wrong}\n{output}")
        shutil.rmtree(directory, ignore_errors=True)
        jars.rename(directory)


def _retrieve(modules: Iterable[Module], work: Path) -> str:
    """Download the jars to `jars` in `work`, and return what Ivy printed. The cache is in there, too: an old one
    elsewhere cannot interfere."""
    (work / "ivy.xml").write_text(_ivy_module(modules), encoding="utf-8")
    command = [find_java("Ivy"), *_proxy_options(), f"-Divy.default.ivy.user.dir={work / 'ivy'}"]
    command += ["-cp", str(spark_jar("ivy")), "org.apache.ivy.Main", "-warn"]
    command += ["-ivy", str(work / "ivy.xml"), "-cache", str(work / "cache"), "-confs", "default"]
    command += ["-types", "jar", "bundle"]  # some jars call themselves bundles, scala-logging among Kafka's
    command += ["-retrieve", str(work / "jars" / "[artifact]-[revision].[ext]")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise StartFailed(f"the Maven repository did not answer within {TIMEOUT_S:.0f} s") from error
    output = done.stdout + done.stderr
    if done.returncode != 0:
        raise StartFailed(f"Ivy ended with exit code {done.returncode}\n{output}")
    return output


def _ivy_module(modules: Iterable[Module]) -> str:
    dependencies = "\n".join(
        f'    <dependency org="{each.organisation}" name="{each.name}" rev="{each.revision}"'
        f' conf="default->{"runtime,master" if each.transitive else "master"}"'
        f' transitive="{"true" if each.transitive else "false"}"/>'
        for each in modules
    )
    return f"""<ivy-module version="2.0">
  <info organisation="spark_replication" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


def _proxy_options() -> list[str]:
    """The JVM does not read `https_proxy`, which pip and everything else here does."""
    proxy = urlsplit(getproxies().get("https", ""))
    if proxy.hostname is None:
        return []
    return [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 80}"]
