"""Builds the SparkSession: the only place that does."""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from conclave.config import Config

SUPPORTED_JAVA = (17, 21)
LOGGING = Path(__file__).with_name("log4j2.properties")


JARS = Path(sys.prefix) / "delta-jars"
JAR_LIST = Path(__file__).with_name("delta-jars.sha256")

CLUSTER_PARTITIONS = 32
"""How many tasks a step has on a cluster, whose cores the driver does not know."""

ROW_GROUP_BYTES = 4 * 1024 * 1024
"""What a reader of one group's messages has to read at least. As a Hadoop setting, a rewritten file keeps it too."""


class JarsMissingError(Exception):
    """The archive needs jars that are not there; the message says what to do."""


class JavaMissingError(Exception):
    """There is no Java that Spark can run on; the message says what to install."""


def require_java() -> None:
    """Raise JavaMissingError unless a Java that Spark supports is installed."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = 'install Java 17 or 21 (Debian: apt install openjdk-17-jre-headless), or set [cleanup] engine = "sql"'
    try:
        if not java:
            raise FileNotFoundError
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr  # noqa: S603 - the Java that Spark itself will start
    except (OSError, subprocess.CalledProcessError) as error:
        raise JavaMissingError(f"the Spark cleanup needs Java, and there is none: {advice}") from error
    version = re.search(r'version "(\d+)', shown)
    if not version or int(version[1]) not in SUPPORTED_JAVA:
        found = shown.splitlines()[0] if shown else "an unknown version"
        raise JavaMissingError(f"the Spark cleanup cannot run on this Java ({found}): {advice}")


def build_session(config: Config, work: Path, *, archive: bool = False) -> SparkSession:
    """Start Spark, with every temporary file in ``work``; in local mode it listens nowhere but on loopback.

    With ``archive`` it knows Delta tables, and takes some seconds and some hundred megabytes more.
    Raises JavaMissingError, JarsMissingError.
    """
    require_java()
    address, cores = _own_address(config.spark.master), _cores(config.spark.master)
    tempfile.tempdir = str(work)
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": address,
        "SPARK_LOCAL_DIRS": str(work),
        "TMPDIR": str(work),
    }
    settings = {
        "spark.master": config.spark.master,
        "spark.app.name": "conclave-cleanup",
        "spark.driver.memory": config.spark.driver_memory,
        "spark.driver.host": address,
        "spark.driver.bindAddress": address,
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={LOGGING.as_uri()} -Djava.io.tmpdir={work} -XX:-UsePerfData -XX:+UseSerialGC"
            # What is planned without an archive never runs long enough to be worth a better compiler.
            f"{'' if archive else ' -XX:TieredStopAtLevel=1'}"
        ),
        "spark.local.dir": str(work),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.eventLog.enabled": "false",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.default.parallelism": str(cores),
        "spark.sql.session.timeZone": "UTC",
    }
    if archive:
        settings |= _delta_settings()
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _delta_settings() -> dict[str, str]:
    raw = "org.apache.hadoop.fs"
    return {
        "spark.jars": ",".join(map(str, _jars())),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.databricks.delta.writeChecksumFile.enabled": "false",
        # Rewritten rows stay in their order: a shuffle would mix the groups of a file.
        "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.hadoop.parquet.block.size": str(ROW_GROUP_BYTES),
        # Small pages: one of a group decodes little. A look at the size often: bodies may be large.
        "spark.hadoop.parquet.page.row.count.limit": "1000",
        "spark.hadoop.parquet.block.size.row.check.min": "4",
        "spark.hadoop.parquet.page.size.row.check.min": "4",
        "spark.hadoop.parquet.enable.dictionary#mls_message": "false",
        # Hadoop sets the modes of files itself, whatever the umask of the process, and writes a .crc beside each.
        "spark.hadoop.fs.permissions.umask-mode": "077",
        "spark.hadoop.fs.file.impl": f"{raw}.RawLocalFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.file.impl": f"{raw}.local.RawLocalFs",
    }


def _jars() -> list[Path]:
    jars = [JARS / line.split()[1] for line in JAR_LIST.read_text(encoding="utf-8").splitlines()]
    if missing := [jar.name for jar in jars if not jar.is_file()]:
        raise JarsMissingError(f"the archive needs {missing[0]} in {JARS}: run `make setup`, which fetches it")
    return jars


def _own_address(master: str) -> str:
    """Return the address at which executors reach this process: loopback, unless the master is elsewhere."""
    found = re.fullmatch(r"spark://(.+):(\d+)", master)
    if not found:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((found[1], int(found[2])))  # sends nothing; the system chooses the way
        return str(probe.getsockname()[0])


def _cores(master: str) -> int:
    found = re.fullmatch(r"local\[(\d+)\]", master)
    return max(2, int(found[1])) if found else CLUSTER_PARTITIONS
