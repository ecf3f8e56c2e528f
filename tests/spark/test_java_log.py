"""What Java writes becomes events: warnings and errors, without content, ids, paths and noise."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spark.java import MAX_CHARACTERS, parse_line

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    "line",
    [
        "",
        "WARNING: Using incubator modules: jdk.incubator.vector\n",
        "Picked up JAVA_TOOL_OPTIONS: -Dsecret=1\n",
        "Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties\n",
        'Setting default log level to "WARN".\n',
        "INFO SparkContext: Running Spark version 4.2.0\n",
        "\tat org.apache.spark.Something.run(Something.java:7)\n",
    ],
)
def test_noise_is_no_event(line: str) -> None:
    assert parse_line(line) is None


@pytest.mark.parametrize(
    ("line", "is_error", "source", "message"),
    [
        ("WARN Utils: a warning \n", False, "Utils", "a warning"),
        ("ERROR Executor: Exception in task 0.0 in stage 3.0 (TID 7)\n", True, "Executor", None),
        ("FATAL SparkUncaughtExceptionHandler: out of memory\n", True, "SparkUncaughtExceptionHandler", None),
        ("OpenJDK 64-Bit Server VM warning: INFO: os::commit_memory failed\n", False, "java", None),
        ("Error: Invalid maximum heap size: -Xmx1k\n", False, "java", None),
    ],
)
def test_warnings_and_errors_are_events(line: str, is_error: bool, source: str, message: str | None) -> None:
    told = parse_line(line)
    assert told is not None
    assert (told.is_error, told.source) == (is_error, source)
    assert told.message == message or message is None


@pytest.mark.parametrize(
    ("secret", "line"),
    [
        ("hello", "ERROR Executor: cannot cast 'hello' to BIGINT"),
        ("hello", 'WARN Utils: value "hello there" is no number'),
        ("0b6c2c52", "ERROR A: no group 0b6c2c52-3f0e-4d43-9d38-6f1f3a1b7a10 here"),
        ("deadbeef", f"ERROR A: hash {'deadbeef' * 4} differs"),
        ("/var/lib", "ERROR DeltaLog: cannot read /var/lib/conclave/archive/lifetime=5/part-0.parquet: gone"),
        ("secret", "ERROR DeltaLog: cannot read file:///srv/secret/part-0.parquet"),
        ("aGVsbG8", f"WARN A: body {'aGVsbG8h' * 8} of a message"),
    ],
)
def test_content_ids_and_paths_are_not_logged(secret: str, line: str) -> None:
    told = parse_line(line)
    assert told is not None
    assert secret not in told.message


def test_a_long_line_is_cut() -> None:
    told = parse_line(f"ERROR A: {'plan ' * 1000}")
    assert told is not None
    assert len(told.message) == MAX_CHARACTERS


SPEAKING = """
from conclave.clock import SystemClock
from conclave.config.settings import Config
from conclave.logs.setup import configure_logging
from conclave.store.engine import schema
from spark.environment import RunEnvironment
configure_logging()
config = Config(database_path="chat.db")
schema.prepare(config.database)
engine = RunEnvironment(config, SystemClock())
engine.warm_up()
java = engine._spark.sparkContext._jvm
logger = java.org.apache.logging.log4j.LogManager.getLogger("org.example.Speaker")
logger.error("cannot cast 'hush' in\\nthe next line", java.java.lang.IllegalStateException("as it happens"))
logger.warn("of no interest")
java.java.lang.System.err.println("OpenJDK 64-Bit Server VM warning: something")
engine.close()
"""


def test_what_a_real_java_writes_is_in_the_log_and_nowhere_else(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", SPEAKING], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    told = [(line["level"], line["source"], line["message"].rstrip()) for line in lines if line["event"] == "spark_log"]
    assert told == [
        ("error", "Speaker", "cannot cast '…' in\\nthe next line as it happens"),
        ("warning", "java", "OpenJDK 64-Bit Server VM warning: something"),
    ]
