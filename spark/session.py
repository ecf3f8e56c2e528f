"""Builds the SparkSession: the only place that does."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from conclave.config import Config

SUPPORTED_JAVA = (17, 21)
LOGGING = Path(__file__).with_name("log4j2.properties")


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


def build_session(config: Config, work: Path) -> SparkSession:
    """Start Spark, with every temporary file in ``work`` and listening nowhere but on loopback.

    Raises JavaMissingError.
    """
    require_java()
    tempfile.tempdir = str(work)
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(work),
        "TMPDIR": str(work),
    }
    settings = {
        "spark.master": config.spark.master,
        "spark.app.name": "conclave-cleanup",
        "spark.driver.memory": config.spark.driver_memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={LOGGING.as_uri()} -Djava.io.tmpdir={work}"
            " -XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        ),
        "spark.local.dir": str(work),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
