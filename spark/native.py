"""Provides Java with the native library zstd, which compresses the archive's files.

Java would unpack it into its temporary folder, in the data directory, and could not load it on a ``noexec`` mount. So
it is passed as a memory file, which is on no mount, and which other users cannot change. Spark's other native libraries
have fallbacks in Java.
"""

import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

from spark.java_check import spark_home

_JAVA_NAMES = {"x86_64": "amd64", "i686": "i386", "armv7l": "arm"}
"""Java's names of processor architectures that differ from the system's."""

_LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"


class NativeLibraryError(Exception):
    """The library cannot be loaded. The message says what to do."""


def open_zstd(work: Path) -> int | None:
    """Return a descriptor of the library in memory; None if Java has to unpack it into ``work``.

    Tests in another process whether it can be loaded. Raises NativeLibraryError if neither way works.
    """
    descriptor = _in_memory()
    if descriptor is not None:
        command = [sys.executable, "-I", "-S", "-c", _LOAD, path_of(descriptor)]
        if not subprocess.run(command, pass_fds=[descriptor], check=False, capture_output=True).returncode:  # noqa: S603 - our own Python
            return descriptor
        os.close(descriptor)
    if os.statvfs(_existing_parent(work)).f_flag & getattr(os, "ST_NOEXEC", 0):
        raise NativeLibraryError(
            f"the archive needs a native library of Spark, which can be loaded neither from memory nor from {work},"
            " which is on a noexec mount: put data_path on another mount"
        )
    return None


def require_zstd(work: Path) -> None:
    """Raise NativeLibraryError unless Java can load the library, from memory or from ``work``."""
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


def _existing_parent(folder: Path) -> Path:
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder
