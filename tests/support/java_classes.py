"""What Java has to load of Spark each time that it starts, loaded once: a file that it only has to map.

Tests start dozens of Java processes, and each would spend half of its start on that. As a program it makes the file;
Java itself sees whether it fits, and goes without it if it does not.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from conclave.clock import SystemClock
from conclave.config.settings import Config
from conclave.store.engine import schema, sqlite
from conclave.store.resources import state
from tests.support.warm_java import WarmJava

FILE = Path(__file__).parents[2] / ".java_cache" / "classes.jsa"

OPTIONS = "SPARK_SUBMIT_OPTS"
"""The variable by which Spark's own start script takes options for the Java process that has the session."""

QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""What Java says of a file that does not fit would be on standard output."""


def use() -> None:
    """Have every Java process that is started from now on use the file, if there is one."""
    if FILE.exists():
        os.environ.setdefault(OPTIONS, f"-XX:SharedArchiveFile={FILE} {QUIET}")


async def make() -> None:
    """Do a cleanup run in a Java process that notes down what it loads, and ends by itself."""
    with tempfile.TemporaryDirectory() as name:
        folder, made = Path(name), Path(name, "made.jsa")
        config = Config(database_path=str(folder / "conclave.db"))
        schema.prepare(config.database)
        with closing(sqlite.connect(config.database)) as connection:
            state.begin_serving(connection, config.policy, SystemClock().read())
        (folder / "conclave.toml").touch()
        os.environ[OPTIONS] = f"-XX:ArchiveClassesAtExit={made} {QUIET}"
        with WarmJava(folder / "java") as java:
            status, said = await java.conclave("cleanup", "run", cwd=folder)
            assert status == 0, said
        if not made.exists():
            sys.exit("this Java writes no file of classes: tests run without, and take longer")
        FILE.parent.mkdir(exist_ok=True)
        shutil.copy(made, beside := FILE.with_suffix(".new"))
        beside.replace(FILE)


if __name__ == "__main__":
    asyncio.run(make())
