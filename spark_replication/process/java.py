"""Finds Java, which ZooKeeper and Spark need, with one error message for both."""

from __future__ import annotations

import os
import shutil

from spark_replication.errors import StartFailed

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
