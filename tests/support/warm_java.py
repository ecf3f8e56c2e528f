"""A Java process that stays warm, for cleanup in processes of their own, as under spark-submit.

Each of them can be killed for real; the next one begins after a second or two instead of ten.
"""

import asyncio
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Self

import pyspark
from pyspark import SparkContext

from spark.session import _delta_settings
from tests.support.sample import is_all
from tests.support.server import PATIENCE, waiting

ROOT = Path(__file__).parents[2]
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"

QUICK = "-XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""No run of a test is long enough to be worth Java's better compiler, which takes half of the time here.

Without it Java has 48 MB for what it compiles: too little for Spark with Delta, so it throws code away again and again.
"""

LEAN = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""How Spark plans and compiles least, which is most of what a run over few rows takes.

Where everything is done (see sample), it is with the settings of operation.
"""


class WarmJava:
    """A Java process that waits for whoever knows its port and secret."""

    def __init__(self, folder: Path) -> None:
        """``folder``: for its temporary files."""
        folder.mkdir()
        self._told = folder / "gateway"
        self._log = (folder / "java.log").open("w")
        options = f"-Djava.io.tmpdir={folder} {QUICK}"
        # What it knows from the start, it also obeys where it keeps what it has opened: the modes of files.
        known = _delta_settings("local[2]") | ({} if is_all() else LEAN)
        settings = [f"--conf={name}={value}" for name, value in known.items()]
        self._process = subprocess.Popen(
            [SUBMIT, "--driver-java-options", options, *settings, "pyspark-shell"],
            env=os.environ | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._told), "SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=folder,
            umask=0o077,  # as the commands have it
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
        )

    def __enter__(self) -> Self:
        for _ in waiting("the Java process"):
            if self._told.exists():
                break
        port, length = struct.unpack(">ii", (told := self._told.read_bytes())[:8])
        self.env = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": told[8 : 8 + length].decode()}
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()  # its end is that of the Java process too
        self._process.wait(PATIENCE)
        self._log.close()

    def forget(self) -> None:
        """Have it be as new for the next process, which need not be one of ``conclave`` below."""
        program = f"from {__name__} import end_former_session; end_former_session()"
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=os.environ | self.env, check=True)

    async def conclave(self, *arguments: str | Path, cwd: Path, failpoint: str = "") -> tuple[int, str]:
        """Run a command, and return its exit status and what it wrote."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", __name__, *arguments),
            cwd=cwd,
            env=os.environ | self.env | {"PYTHONPATH": str(ROOT), "CONCLAVE_FAILPOINT": failpoint},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(2 * PATIENCE):
                said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
            status = await process.wait()
        return status, said.decode()


def end_former_session() -> None:
    """End the session of a process that was killed, where its Java process is this one's too.

    And have Java forget where that one's files lay: files of this process must not lie in a folder that is not its own.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return
    SparkContext._ensure_initialized()
    java = SparkContext._jvm
    assert java
    left = java.org.apache.spark.sql.classic.SparkSession.getDefaultSession()
    if left.isDefined():
        left.get().stop()
    java.java.lang.Class.forName("org.apache.spark.util.Utils$").getField("MODULE$").get(None).clearLocalRootDirs()


def main() -> None:
    """Do what `conclave` does, after whoever was killed before: its Spark session is still there."""
    from conclave.cli import main as cli
    from spark.archive import move, table

    end_former_session()
    table.FEW_FILES = 2  # so that a test's few files are a crowd
    move.BATCH_ROWS = 12  # and its few messages several batches, on their way at once
    cli.main()


if __name__ == "__main__":
    main()
