"""Builds the SparkSession.

It also closes a security hole that no setting closes. Spark 4.2 serves files to unauthenticated clients: its jars, and
the folder of artifacts, from which ``..`` leads to every file that this user can read.
"""

import contextlib
import os
import re
import socket
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from pyspark.version import __version__ as pyspark_version

from conclave.archive.layout import PAGE_ROWS, ROW_GROUP_BYTES
from conclave.config.settings import Config
from spark import delta_jars, requirements
from spark.java import Java
from spark.requirements import WITHOUT_TRACES, RequirementError, find_jars, spark_home
from spark.work_folder import WorkFolder

_ARTIFACTS = "/artifacts"
"""The name under which Spark serves artifacts of sessions. Conclave uses none."""

_NO_FOLDER = "/dev/null/none"
"""A path that cannot be a folder, so that no file can be reached from it, even by ``..``."""

_BLOCK_SERVER = "org$apache$spark$network$netty$NettyBlockTransferService$$server"


def hand_out_nothing(context: SparkContext) -> None:
    """Keep Spark from serving a folder. Call it before a session exists: the first registered folder is used."""
    java: Any = context._jvm  # noqa: SLF001 - the only way to reach it
    _env(context).rpcEnv().fileServer().addDirectoryIfAbsent(_ARTIFACTS, java.java.io.File(_NO_FOLDER))


def stop_listening(context: SparkContext) -> None:
    """Close the ports of the driver and of its blocks: in local mode the executor is in the same process."""
    env = _env(context)
    for owner, name in ((env.rpcEnv(), "server"), (env.blockManager().blockTransferService(), _BLOCK_SERVER)):
        field = owner.getClass().getDeclaredField(name)
        field.setAccessible(True)
        field.get(owner).close()


def _env(context: SparkContext) -> Any:
    return context._jsc.sc().env()  # noqa: SLF001 - the only way to reach it


LOGGING = Path(__file__).with_name("log4j2.properties")
"""The logging configuration of Java's libraries."""

_CLASS_PATHS = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
"""The settings that pass jars to a Java process that spark-submit has started."""

_SAFE_PATH = "PYTHONSAFEPATH"
"""The variable that keeps Python from loading modules from the working directory."""

CLUSTER_PARTITIONS = 32
"""The partitions of a shuffle on a cluster. Spark merges small ones into one task."""

_NO_CRASH_REPORT = "-XX:+SuppressFatalErrorMessage"
"""A Java option: no crash report or dump of its memory, which may contain bodies."""

PAGE_SUMS = "parquet.page.verify-checksum.enabled"
"""The setting to verify page checksums on reads. Spark writes checksums by default."""

_COMPILER_THRESHOLDS = (
    "-XX:Tier4InvocationThreshold=200000 -XX:Tier4MinInvocationThreshold=20000"
    " -XX:Tier4CompileThreshold=600000 -XX:Tier4BackEdgeThreshold=1000000"
)
"""Java options that limit its slower, optimizing compiler to code that runs for each row, not planning code.

The usual thresholds are 25 to 40 times lower. Without an archive no code runs long enough for this compiler.
"""


def spark_version() -> str:
    """Return the version of Spark."""
    return pyspark_version


def build_session(
    config: Config, folder: WorkFolder, java: Java, *, held: Collection[int] = (), archive: bool = False
) -> SparkSession:
    """Start Spark, with all its temporary files in ``folder``.

    In local mode, only the port for calls of this process stays open. It is on loopback, and protected by a token.

    ``archive``: enable Delta tables, which takes some seconds and some hundred megabytes more. Under spark-submit, its
    settings take precedence, and its Java is used. Otherwise ``java`` is started, and inherits the folder and the
    descriptors ``held``. Call it in the main thread: Java ends with the thread that starts it.

    Raises RequirementError or JavaStartError.
    """
    submitted, work = _submitted(), folder.path
    _require_submitted(submitted, archive=archive)
    master = submitted.get("spark.master", config.spark.master)
    requirements.require_secret(master, submitted or None)
    address = _own_address(master)
    tempfile.tempdir = str(work)
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        _SAFE_PATH: "1",  # Python's -P, for processes that Java starts
        "SPARK_LOCAL_IP": address,
        "SPARK_LOCAL_DIRS": str(work),
        "TMPDIR": str(work),
    }
    settings = _settings(master, address, work) | (_delta_settings(master) if archive else {})
    if not submitted:
        with _library(work) if archive else contextlib.nullcontext() as library:
            settings |= _java_settings(config, folder, library, archive=archive)
            descriptors = (folder.descriptor, *held, *([library] if library is not None else []))
            _connect(*java.start(spark_home(), settings, work, descriptors))
    with ThreadPoolExecutor(1) as executor:  # in the main thread, PySpark would handle Ctrl-C
        session = executor.submit(_begin, master, settings | submitted | _protection(master)).result()
    if archive:
        _require_library(session)
    return session


def _begin(master: str, settings: Mapping[str, str]) -> SparkSession:
    """Start a session. Closes unused ports before they serve anything."""
    context = SparkContext.getOrCreate(SparkConf().setAll(list(settings.items())))
    hand_out_nothing(context)
    if re.fullmatch(r"local(\[.*\])?", master):
        stop_listening(context)
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextlib.contextmanager
def _library(work: Path) -> Iterator[int | None]:
    """Context manager for the descriptor of the native library, see ``requirements.open_zstd``, while Java starts."""
    descriptor = requirements.open_zstd(work)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _require_library(session: SparkSession) -> None:
    """Raise RequirementError unless Java can load zstd. Fails early, since not every run uses it."""
    try:
        session._jvm.com.github.luben.zstd.util.Native.load()  # type: ignore[union-attr]  # noqa: SLF001 - the only way to reach it
    except Py4JError as error:
        session.stop()
        raise RequirementError(
            "Java cannot load the native library that the archive needs, as where its temporary folder is on a mount"
            " with noexec: name another by -Djava.io.tmpdir in spark-submit's --driver-java-options"
        ) from error


def _connect(port: str, secret: str) -> None:
    """Make PySpark use a running Java process, as under spark-submit."""
    variables = {"PYSPARK_GATEWAY_PORT": port, "PYSPARK_GATEWAY_SECRET": secret}
    os.environ |= variables
    try:
        SparkContext._ensure_initialized()  # noqa: SLF001 - the only way to connect before there is a session
    finally:
        for name in variables:
            del os.environ[name]


_HISTORY_LIMITS = {
    # By default, Spark stores a thousand queries for its web page, even if the page is off.
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "100",
}


def _settings(master: str, address: str, work: Path) -> dict[str, str]:
    return {
        "spark.master": master,
        "spark.app.name": "conclave-cleanup",
        "spark.driver.host": address,
        "spark.driver.bindAddress": address,
        "spark.local.dir": str(work),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **_HISTORY_LIMITS,
        "spark.eventLog.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        f"spark.executorEnv.{_SAFE_PATH}": "1",
        **_parallelism(master),
        **_protection(master),
    }


def _protection(master: str) -> dict[str, str]:
    """Return the settings that protect Spark's ports by the secret. Settings of spark-submit do not override them.

    Otherwise other local users could run code as this user. In local mode Java creates a secret for each start, and
    keeps it in memory. The secret of a cluster is in its settings, together with its encryption settings, which must be
    the same on all hosts.
    """
    always = {
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        # Encrypted by a key in Java's memory, so that a killed process leaves no bodies on disk.
        "spark.io.encryption.enabled": "true",
    }
    if requirements.is_cluster(master):
        return always
    return always | {
        "spark.network.crypto.authEngineVersion": "2",
        "spark.network.crypto.cipher": "AES/GCM/NoPadding",
        "spark.network.crypto.saslFallback": "false",
    }


def _parallelism(master: str) -> dict[str, str]:
    """Return the settings for the number of tasks, and on a cluster for crashes of executors."""
    if found := re.fullmatch(r"local\[(\d+)\]", master):
        cores = str(max(2, int(found[1])))
        return {"spark.sql.shuffle.partitions": cores, "spark.default.parallelism": cores}
    # By default, Spark uses a task for each core of the executors.
    return {
        "spark.sql.shuffle.partitions": str(CLUSTER_PARTITIONS),
        "spark.executor.extraJavaOptions": _NO_CRASH_REPORT,
    }


def _java_settings(config: Config, folder: WorkFolder, library: int | None, *, archive: bool) -> dict[str, str]:
    """Return the settings for starting Java, which is already running under spark-submit.

    ``library``: the descriptor of a native library in memory, which Java inherits; None: no library.
    """
    work = folder.path
    return {
        **_private_sockets(folder),
        "spark.driver.memory": config.spark.driver_memory,
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={LOGGING.as_uri()} -Djava.io.tmpdir={_quoted(work)}"
            f" {' '.join(WITHOUT_TRACES)} -XX:+UseSerialGC"
            # A crash report may include bodies, so write it to the work files, which are removed.
            f" -XX:ErrorFile={_quoted(work / 'crash.log')} -XX:-CreateCoredumpOnCrash"
            f" {_COMPILER_THRESHOLDS if archive else '-XX:TieredStopAtLevel=1'}"
            f"{f' -DZstdNativePath={requirements.path_of(library)}' if library is not None else ''}"
        ),
    }


def _private_sockets(folder: WorkFolder) -> dict[str, str]:
    """Return the settings by which Java and this process exchange rows over private sockets.

    By default each is a port on loopback that accepts one connection, by which another user could make a run fail.
    These are files in ``folder``, addressed by its descriptor, since a socket's path is limited to 107 bytes. On other
    systems than Linux they are ports with a secret.
    """
    socket_folder = Path(f"/proc/{os.getpid()}/fd/{folder.descriptor}")
    if not socket_folder.exists():
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(socket_folder),
    }


def _quoted(path: Path) -> str:
    """Quote a path in one of Java's options, which Spark splits at unquoted spaces."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _submitted() -> dict[str, str]:
    """Return the settings of spark-submit; empty if it did not start this process."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()  # noqa: SLF001 - without it SparkConf would not ask Java
    settings = dict(SparkConf().getAll())
    if settings.get("spark.master") == "local[*]":
        del settings["spark.master"]  # the default of spark-submit
    return settings


def _require_submitted(submitted: Mapping[str, str], *, archive: bool) -> None:
    if submitted.get("spark.submit.deployMode") == "cluster":
        raise RequirementError(
            "the job reads the database where the server runs: use --deploy-mode client, on the server's host"
        )
    if archive and submitted and not any("delta-spark" in submitted.get(name, "") for name in _CLASS_PATHS):
        raise RequirementError(f"the archive needs its jars: give spark-submit --jars with all of {delta_jars.TARGET}")


def _delta_settings(master: str) -> dict[str, str]:
    raw, jars = "org.apache.hadoop.fs", list(map(str, find_jars()))
    # In local mode Java loads the verified files directly; only executors of a cluster need copies.
    jar_settings = (
        {"spark.jars": ",".join(jars)} if requirements.is_cluster(master) else {_CLASS_PATHS[-1]: os.pathsep.join(jars)}
    )
    return jar_settings | {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.databricks.delta.writeChecksumFile.enabled": "false",
        # Keep the order of rows: a shuffle would mix the groups of a file, and sorting by partition costs a copy. A
        # task writes to a few partitions at once; only rows for more are sorted.
        "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "false",
        "spark.sql.maxConcurrentOutputFileWriters": "6",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
        "spark.sql.parquet.compression.codec": "zstd",
        # A batch has thousands of groups. Sorting to aggregate, the default above 128 groups, takes longer.
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
        "spark.hadoop.parquet.block.size": str(ROW_GROUP_BYTES),  # rewritten files use the same size
        # Small pages, so that reading one group decodes little. Check the size often, since bodies may be large.
        "spark.hadoop.parquet.page.row.count.limit": str(PAGE_ROWS),
        "spark.hadoop.parquet.block.size.row.check.min": "4",
        "spark.hadoop.parquet.page.size.row.check.min": "4",
        "spark.hadoop.parquet.enable.dictionary#mls_message": "false",
        # Otherwise a rewrite would give a damaged page a valid checksum.
        "spark.hadoop.parquet.page.write-checksum.enabled": "true",
        f"spark.hadoop.{PAGE_SUMS}": "true",
        # Statistics of a file have no checksum: a damaged minimum would skip due rows.
        "spark.sql.parquet.filterPushdown": "false",
        # Hadoop ignores the umask of the process. Its raw file system writes no .crc file beside each file.
        "spark.hadoop.fs.permissions.umask-mode": "077",
        "spark.hadoop.fs.file.impl": f"{raw}.RawLocalFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.file.impl": f"{raw}.local.RawLocalFs",
    }


def _own_address(master: str) -> str:
    """Return the address at which executors reach this process.

    It is loopback, unless the master is a ``spark://`` address. Then it is ``SPARK_LOCAL_IP`` if set, else the address
    from which this machine reaches the master.
    """
    found = re.fullmatch(r"spark://(.+):(\d+)", master)
    if not found:
        return "127.0.0.1"
    if chosen := os.environ.get("SPARK_LOCAL_IP"):
        return chosen
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((found[1], int(found[2])))  # sends nothing; the system chooses the route
        return str(probe.getsockname()[0])
