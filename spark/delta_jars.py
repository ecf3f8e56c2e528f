"""Downloads the Delta Lake jars that Spark lacks into this virtual environment.

Spark's resolver downloads them from its default repositories. They are verified against ``delta-jars.sha256``, lines of
SHA-256 and file name, now and before each session that loads them. ``python -m spark.delta_jars --list`` writes that
file, for a new version. This module imports no other module of Conclave, so that an image build can run it alone.
"""

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

COORDINATE = "io.delta:delta-spark_4.2_2.13:4.4.0"
OF_DELTA = ("io.delta_", "io.unitycatalog_")
"""The prefixes of the required jars. Spark includes the other dependencies of Delta Lake."""

CHECKSUMS = Path(__file__).resolve().with_name("delta-jars.sha256")
TARGET = Path(sys.prefix) / "delta-jars"

_OTHERS_WRITE = 0o022

_RESOLVE = """
import sys
from pyspark.java_gateway import launch_gateway
gateway = launch_gateway()
try:
    jvm, no, yes = gateway.jvm, False, True
    maven = getattr(jvm.java.lang.Class.forName("org.apache.spark.util.MavenUtils$").getField("MODULE$"), "get")(None)
    said, none = jvm.System.err, jvm.scala.Option.empty()
    settings = maven.buildIvySettings(none, jvm.scala.Some(sys.argv[2]), no, said)
    excluded = getattr(maven, "resolveMavenCoordinates$default$5")()
    maven.resolveMavenCoordinates(sys.argv[1], settings, none, yes, excluded, no, said)
finally:
    gateway.shutdown()
"""
"""Downloads without a Spark session, which would load the downloaded jars.

Ignores the user's repositories (``~/.m2``, ``~/.ivy2``) and Spark's settings.
"""


class FetchError(Exception):
    """The jars could not be downloaded, or have wrong checksums. The message says which and why."""


def main() -> None:
    """Fetch missing jars, and exit with one line if that fails."""
    try:
        if "--list" in sys.argv:
            with tempfile.TemporaryDirectory() as folder:
                CHECKSUMS.write_text("".join(f"{digest(jar)}  {jar.name}\n" for jar in resolve(Path(folder))))
        elif fault():
            sys.stdout.write("fetching the jars of Delta Lake (once)\n")
            fetch()
    except FetchError as error:
        sys.exit(str(error))


def listed() -> dict[str, str]:
    """Return the SHA-256 of each required jar in hexadecimal, by file name."""
    lines = [line.split() for line in CHECKSUMS.read_text(encoding="utf-8").splitlines()]
    return {name: checksum for checksum, name in lines}


def fault() -> str:
    """Return why the jars must not be loaded, or "".

    All must exist with their checksums, and only root, this user and the owner of the virtual environment may be able
    to change them. Reads 13 MB in about 0.1 s.
    """
    trusted = {0, os.geteuid(), Path(sys.prefix).stat().st_uid}
    try:
        for path in (TARGET, *(TARGET / name for name in listed())):
            status = path.lstat()
            if not (stat.S_ISDIR(status.st_mode) if path == TARGET else stat.S_ISREG(status.st_mode)):
                return f"{path} is a link, or something else than expected"
            if status.st_uid not in trusted or status.st_mode & _OTHERS_WRITE:
                mode = stat.S_IMODE(status.st_mode)
                return f"{path} can be changed by others (owner {status.st_uid}, mode {mode:04o})"
        for name, checksum in listed().items():
            if (actual := digest(TARGET / name)) != checksum:
                return f"{TARGET / name} has a wrong SHA-256: {actual}"
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    return ""


def fetch() -> None:
    """Download the jars, and replace the contents of their folder. Raises FetchError."""
    with tempfile.TemporaryDirectory(dir=sys.prefix) as folder:
        jars = {jar.name: jar for jar in resolve(Path(folder))}
        for name, checksum in listed().items():
            if name not in jars:
                raise FetchError(f"{name}: is not among the jars of {COORDINATE}")
            if digest(jars[name]) != checksum:
                raise FetchError(f"{name}: its SHA-256 is {digest(jars[name])}, but {CHECKSUMS} has {checksum}")
        _remove(TARGET)
        TARGET.mkdir()
        TARGET.chmod(0o755)  # independent of the umask
        for name in listed():
            shutil.move(jars[name], TARGET / name)
            (TARGET / name).chmod(0o644)


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def resolve(folder: Path) -> list[Path]:
    """Download the jars into ``folder``, which must be private; return those that Spark lacks, ordered by name.

    Raises FetchError.
    """
    # Without the address, Spark resolves the host name, which may fail, for example while an image is built.
    environment = os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_CONF_DIR": str(folder),
        "PYSPARK_PYTHON": sys.executable,
    }
    process = subprocess.run(  # noqa: S603 - this Python with fixed arguments
        [sys.executable, "-P", "-c", _RESOLVE, COORDINATE, str(folder / "ivy")],
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    if process.returncode:
        errors = [
            line.strip()
            for line in (process.stdout + process.stderr).splitlines()
            if "rror" in line or "xception" in line
        ]
        causes = [line for line in errors if line.startswith("Caused by: ")][-1:] or errors
        raise FetchError(f"{COORDINATE} could not be resolved: {causes[0] if causes else 'Spark gave no reason'}")
    return sorted(jar for jar in (folder / "ivy" / "jars").glob("*.jar") if jar.name.startswith(OF_DELTA))


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
