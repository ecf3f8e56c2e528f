"""Checks the requirements of Spark without starting it: Java, the archive's jars, a native library, a cluster's secret.

The native library is zstd, which compresses the archive's files. Java would unpack it into its temporary folder, in the
data directory, and could not load it on a ``noexec`` mount. So it is passed as a memory file, which is on no mount, and
which other users cannot change. Spark's other native libraries have fallbacks in Java.

A cluster without authentication or without a secret is rejected: anyone could run code on it.
"""

import errno
import importlib.util
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from conclave.system.data_folder import existing_folder
from spark import delta_jars

SUPPORTED_JAVA = (17, 21)
"""The Java versions that Spark supports."""

WITHOUT_TRACES = ("-XX:-UsePerfData", "-XX:+DisableAttachMechanism")
"""Java options: no file in /tmp, and no attaching of tools."""

_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""The errors of a start that fails because processes, memory or files are exhausted."""


class RequirementError(Exception):
    """A requirement of Spark is not met. The message says what to do."""


class JavaFailsError(RequirementError):
    """Java does not start, perhaps temporarily, as for lack of memory. The message says why."""


def find_java(*, archive: bool = False, memory: str = "") -> tuple[str, str]:
    """Return the path and version of the Java that Spark will use. Runs ``java -version``, which takes 0.1 s.

    ``archive``: the archive is used, so Spark is required. ``memory``: the heap to test, as "1g"; "": Java's default.
    Raises RequirementError if it is not supported, JavaFailsError if it does not start.
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
        raise RequirementError(f"the Spark cleanup needs Java, which is not installed: {advice}") from error
    output = process.stderr
    if process.returncode:
        # If Java ends at once, it prints the reason to standard output.
        why = "; ".join((output + process.stdout).splitlines()[:2]) or "without output"
        hint = ". Is [spark] driver_memory right for this machine?" if memory and "heap" in why else ""
        raise JavaFailsError(f"{java} ended with status {process.returncode}: {why}{hint}")
    version = re.search(r'version "(\d+)', output)
    version_line = output.splitlines()[0] if output else "an unknown version"
    if not version or int(version[1]) not in SUPPORTED_JAVA:
        raise RequirementError(f"the Spark cleanup cannot run on this Java ({version_line}): {advice}")
    return java, version_line


def spark_home() -> Path:
    """Return Spark's home folder without loading PySpark."""
    spec = importlib.util.find_spec("pyspark")
    return Path(os.environ.get("SPARK_HOME") or (spec and spec.origin and Path(spec.origin).parent) or "")


def find_jars() -> list[Path]:
    """Return the verified jars that the archive needs. Raises RequirementError."""
    if fault := delta_jars.fault():
        raise RequirementError(f"the archive needs its jars: {fault}. `conclave archive fetch-jars` fetches them")
    return [delta_jars.TARGET / name for name in delta_jars.listed()]


_JAVA_NAMES = {"x86_64": "amd64", "i686": "i386", "armv7l": "arm"}
"""Java's names of processor architectures that differ from the system's."""

_LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"


def open_zstd(work: Path) -> int | None:
    """Return a descriptor of the library in memory; None if Java has to unpack it into ``work``.

    Tests in another process whether it can be loaded. Raises RequirementError if neither way works.
    """
    descriptor = _in_memory()
    if descriptor is not None:
        command = [sys.executable, "-I", "-S", "-c", _LOAD, path_of(descriptor)]
        if not subprocess.run(command, pass_fds=[descriptor], check=False, capture_output=True).returncode:  # noqa: S603 - our own Python
            return descriptor
        os.close(descriptor)
    if os.statvfs(existing_folder(work)).f_flag & getattr(os, "ST_NOEXEC", 0):
        raise RequirementError(
            f"the archive needs a native library of Spark, which can be loaded neither from memory nor from {work},"
            " which is on a noexec mount: put data_path on another mount"
        )
    return None


def require_zstd(work: Path) -> None:
    """Raise RequirementError unless Java can load the library, from memory or from ``work``."""
    descriptor = open_zstd(work)
    if descriptor is not None:
        os.close(descriptor)


def path_of(descriptor: int) -> str:
    """Return the path of an open file, for this process and those that inherit the descriptor."""
    return f"/proc/self/fd/{descriptor}"


def _in_memory() -> int | None:
    """Return a descriptor of the library; None without a library for this machine, or without memory files."""
    if not hasattr(os, "memfd_create"):
        return None
    machine = platform.machine()
    name = f"linux/{_JAVA_NAMES.get(machine, machine)}/"
    for jar in spark_home().glob("jars/zstd-jni-*.jar"):
        with zipfile.ZipFile(jar) as opened:
            for each in opened.namelist():
                if each.startswith(name) and each.endswith(".so"):
                    descriptor = os.memfd_create("zstd")
                    with os.fdopen(os.dup(descriptor), "wb") as file:
                        file.write(opened.read(each))
                    return descriptor
    return None


PAGE = "docs/operations/cluster.md"

SECRET_VARIABLE = "_SPARK_AUTH_SECRET"  # noqa: S105 - the name that Spark gives it
"""The environment variable for the secret, which Spark and its executors read."""

_SECRET, _SECRET_FILE = "spark.authenticate.secret", "spark.authenticate.secret.file"
_OTHERS_MAY = 0o007

_LINE = re.compile(r"\s*([^\s#!=:][^\s=:]*)\s*[\s=:]\s*(.*?)\s*")
"""A line of a properties file, as Spark reads it: the name and the value."""


def is_cluster(master: str) -> bool:
    """Return whether a master is a standalone cluster of Spark, which needs a secret."""
    return master.startswith("spark://")


def require_secret(master: str, settings: Mapping[str, str] | None = None) -> None:
    """Raise RequirementError if ``master`` is a cluster without a secret, or with a secret that others can read.

    ``settings``: Spark's settings; None: those of ``spark-defaults.conf``.
    """
    if not is_cluster(master):
        return
    source = "the settings of spark-submit"
    if settings is None:
        source, settings = _defaults()
    if settings.get("spark.authenticate", "").lower() != "true":
        raise RequirementError(
            f"spark.master: {master}: {source} must have spark.authenticate true, and a secret: otherwise everyone with"
            f" access to a port of the cluster can run programs as the server's user; see {PAGE}"
        )
    if file := settings.get(_SECRET_FILE):
        _require_private(Path(file))
    elif not settings.get(_SECRET) and not os.environ.get(SECRET_VARIABLE):
        raise RequirementError(
            f"spark.master: {master}: spark.authenticate is on, but Spark has no secret: specify the file with"
            f" {_SECRET} by --properties-file, or its folder by SPARK_CONF_DIR; see {PAGE}"
        )


def _defaults() -> tuple[str, dict[str, str]]:
    """Return the path of Spark's settings file, and its settings, empty if it is missing. Raises RequirementError."""
    path = Path(os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf") / "spark-defaults.conf"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return f"{path} (SPARK_CONF_DIR)", {}
    except (OSError, UnicodeDecodeError) as error:
        raise RequirementError(f"spark.master: {path}: cannot be read: {error}") from error
    settings = {match[1]: match[2] for line in lines if (match := _LINE.fullmatch(line))}
    if settings.get(_SECRET):
        _require_private(path)
    return str(path), settings


def _require_private(path: Path) -> None:
    """Raise RequirementError if a file with the secret is unreadable, or readable for others than owner and group."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise RequirementError(f"spark.master: {path}: cannot be read: {error.strerror}") from error
    if mode & _OTHERS_MAY:
        raise RequirementError(f"spark.master: {path}: others can read the secret (mode {mode:04o}): chmod 600 {path}")
