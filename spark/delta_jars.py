"""Fetches the jars of Delta Lake that Spark lacks into the virtual environment whose Python runs this; once.

Spark resolves them from its own default repositories. Each must be the one that ``delta-jars.sha256`` names: lines of
SHA-256 and file name. ``python -m spark.delta_jars --list`` writes the found jars there instead: for a new version.
Nothing is imported from the rest, so that an image can fetch them before it has the sources.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

COORDINATE = "io.delta:delta-spark_4.2_2.13:4.4.0"
OF_DELTA = ("io.delta_", "io.unitycatalog_")
"""Whose jars are needed: all else that Delta asks for, Spark brings."""

LISTED = Path(__file__).resolve().with_name("delta-jars.sha256")
TARGET = Path(sys.prefix) / "delta-jars"

_RESOLVE = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
builder = builder.config("spark.jars.packages", sys.argv[1]).config("spark.jars.ivy", sys.argv[2])
builder.getOrCreate().stop()
"""


class FetchError(Exception):
    """The jars could not be had, or are not those that are listed. The message says which and why."""


def main() -> None:
    """Fetch what is missing, and say in one line what is wrong if that fails."""
    try:
        if "--list" in sys.argv:
            with tempfile.TemporaryDirectory() as folder:
                LISTED.write_text("".join(f"{digest(jar)}  {jar.name}\n" for jar in resolve(Path(folder))))
        elif not whole():
            sys.stdout.write("fetching the jars of Delta Lake (once)\n")
            fetch()
    except FetchError as error:
        sys.exit(str(error))


def listed() -> dict[str, str]:
    """Return the SHA-256 of each jar that is needed, in hexadecimal, by its file name."""
    lines = [line.split() for line in LISTED.read_text(encoding="utf-8").splitlines()]
    return {name: known for known, name in lines}


def whole() -> bool:
    """Whether all jars are there as they are listed."""
    return all((TARGET / name).is_file() and digest(TARGET / name) == known for name, known in listed().items())


def fetch() -> None:
    """Put the jars into their folder, in place of what is there. Raises FetchError."""
    with tempfile.TemporaryDirectory(dir=sys.prefix) as folder:
        found = {jar.name: jar for jar in resolve(Path(folder))}
        for name, known in listed().items():
            if name not in found:
                raise FetchError(f"{name}: was not among what was resolved for {COORDINATE}")
            if digest(found[name]) != known:
                raise FetchError(f"{name}: its SHA-256 is {digest(found[name])}, but {LISTED} says {known}")
        shutil.rmtree(TARGET, ignore_errors=True)
        TARGET.mkdir()
        for name in listed():
            shutil.move(found[name], TARGET / name)


def resolve(folder: Path) -> list[Path]:
    """Have Spark resolve the jars into ``folder``; return those that Spark lacks, by name. Raises FetchError."""
    # The address: otherwise Spark asks for the machine's own name, which need not resolve, as while an image is built.
    environment = os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
        "PYSPARK_PYTHON": sys.executable,
    }
    ran = subprocess.run(  # noqa: S603 - our own Python and our own words
        [sys.executable, "-P", "-c", _RESOLVE, COORDINATE, str(folder / "ivy")],
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    if ran.returncode:
        said = [line.strip() for line in (ran.stdout + ran.stderr).splitlines() if "rror" in line or "xception" in line]
        causes = [line for line in said if line.startswith("Caused by: ")][-1:] or said
        raise FetchError(f"{COORDINATE} could not be resolved: {causes[0] if causes else 'Spark gave no reason'}")
    return sorted(jar for jar in (folder / "ivy" / "jars").glob("*.jar") if jar.name.startswith(OF_DELTA))


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
