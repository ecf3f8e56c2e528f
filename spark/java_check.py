"""Checks the requirements of Spark without starting it: Java, and the jars of the archive."""

import errno
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from spark import delta_jars

SUPPORTED_JAVA = (17, 21)
"""The Java versions that Spark supports."""

WITHOUT_TRACES = ("-XX:-UsePerfData", "-XX:+DisableAttachMechanism")
"""Java options: no file in /tmp, and no attaching of tools."""

_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""The errors of a start that fails because processes, memory or files are exhausted."""


class JarsMissingError(Exception):
    """Jars of the archive are missing, or must not be loaded. The message says what to do."""


class DeployModeError(Exception):
    """Spark is configured to run the job on a machine without the database."""


class JavaMissingError(Exception):
    """There is no suitable Java. The message says what to install."""


class JavaFailsError(JavaMissingError):
    """Java does not start, perhaps temporarily, as for lack of memory. The message says why."""


def find_java(*, archive: bool = False, memory: str = "") -> tuple[str, str]:
    """Return the path and version of the Java that Spark will use. Runs ``java -version``, which takes 0.1 s.

    ``archive``: the archive is used, so Spark is required. ``memory``: the heap to test, as "1g"; "": Java's default.
    Raises JavaMissingError if it is not supported, JavaFailsError if it does not start.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = "install Java 17 or 21 (Debian: apt install openjdk-17-jre-headless)"
    advice += "; the archive works by Spark only" if archive else ', or set [cleanup] engine = "sql"'
    try:
        if not java:
            raise FileNotFoundError
        command = [java, *([f"-Xmx{memory}"] if memory else []), *WITHOUT_TRACES, "-version"]
        process = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603 - the same Java that Spark will start
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise JavaFailsError(f"{java} cannot be started now: {error.strerror}") from error
        raise JavaMissingError(f"the Spark cleanup needs Java, which is not installed: {advice}") from error
    output = process.stderr
    if process.returncode:
        # If Java ends at once, it prints the reason to standard output.
        why = "; ".join((output + process.stdout).splitlines()[:2]) or "without output"
        hint = ". Is [spark] driver_memory right for this machine?" if memory and "heap" in why else ""
        raise JavaFailsError(f"{java} ended with status {process.returncode}: {why}{hint}")
    version = re.search(r'version "(\d+)', output)
    version_line = output.splitlines()[0] if output else "an unknown version"
    if not version or int(version[1]) not in SUPPORTED_JAVA:
        raise JavaMissingError(f"the Spark cleanup cannot run on this Java ({version_line}): {advice}")
    return java, version_line


def spark_home() -> Path:
    """Return Spark's home folder without loading PySpark."""
    spec = importlib.util.find_spec("pyspark")
    return Path(os.environ.get("SPARK_HOME") or (spec and spec.origin and Path(spec.origin).parent) or "")


def find_jars() -> list[Path]:
    """Return the verified jars that the archive needs. Raises JarsMissingError."""
    if fault := delta_jars.fault():
        raise JarsMissingError(f"the archive needs its jars: {fault}. `conclave archive fetch-jars` fetches them")
    return [delta_jars.TARGET / name for name in delta_jars.listed()]
