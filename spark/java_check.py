"""Looks for what Spark needs to start, without starting it: Java, and the jars of the archive."""

import errno
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from spark import delta_jars

SUPPORTED_JAVA = (17, 21)
"""The versions of Java that Spark runs on."""

WITHOUT_TRACES = ("-XX:-UsePerfData", "-XX:+DisableAttachMechanism")
"""Options of Java: it keeps no file in /tmp, and no tool can be attached to it."""

_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Why a program that is there cannot be started: processes, memory or files are short."""


class JarsMissingError(Exception):
    """The archive needs jars that are missing, or not as they have to be. The message says what to do."""


class DeployModeError(Exception):
    """Spark was told to run the job on a machine without the database."""


class JavaMissingError(Exception):
    """There is no Java that Spark can run on. The message says what to install."""


class JavaFailsError(JavaMissingError):
    """There is a Java, but it does not start, as where memory is short: that may pass. The message says why."""


def find_java(*, archive: bool = False, memory: str = "") -> tuple[str, str]:
    """Return the path of the Java that Spark will start, and its version. Java tells it, within 0.1 s.

    ``archive``: nothing else will do. ``memory``: what Java has to be able to get, as "1g"; "" for its own default.
    Raises JavaMissingError unless Spark supports it, JavaFailsError if that cannot be told now.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = "install Java 17 or 21 (Debian: apt install openjdk-17-jre-headless)"
    advice += "; the archive works by Spark only" if archive else ', or set [cleanup] engine = "sql"'
    try:
        if not java:
            raise FileNotFoundError
        command = [java, *([f"-Xmx{memory}"] if memory else []), *WITHOUT_TRACES, "-version"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603 - the same Java that Spark will start
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise JavaFailsError(f"{java} cannot be started now: {error.strerror}") from error
        raise JavaMissingError(f"the Spark cleanup needs Java, and there is none: {advice}") from error
    shown = done.stderr
    if done.returncode:
        # Java says where it ends at once on standard output.
        why = "; ".join((shown + done.stdout).splitlines()[:2]) or "it says nothing"
        asks = ". Is [spark] driver_memory right for this machine?" if memory and "heap" in why else ""
        raise JavaFailsError(f"{java} ended with status {done.returncode}: {why}{asks}")
    version = re.search(r'version "(\d+)', shown)
    found = shown.splitlines()[0] if shown else "an unknown version"
    if not version or int(version[1]) not in SUPPORTED_JAVA:
        raise JavaMissingError(f"the Spark cleanup cannot run on this Java ({found}): {advice}")
    return java, found


def spark_home() -> Path:
    """Return Spark's own folder, as PySpark finds it, without loading PySpark."""
    found = importlib.util.find_spec("pyspark")
    return Path(os.environ.get("SPARK_HOME") or (found and found.origin and Path(found.origin).parent) or "")


def find_jars() -> list[Path]:
    """Return the jars that the archive needs, once all are as they have to be. Raises JarsMissingError."""
    if fault := delta_jars.fault():
        raise JarsMissingError(f"the archive needs its jars: {fault}. `conclave archive fetch-jars` fetches them")
    return [delta_jars.TARGET / name for name in delta_jars.listed()]
