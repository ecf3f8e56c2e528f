"""Closes what Spark's authentication leaves open at its ports: parts of Spark that no setting reaches.

Spark 4.2 answers requests for files before a client has shown its secret: the jars that it hands out, and the folder of
artifacts, from which ``..`` leads to every file that this user may read.
"""

from typing import Any

from pyspark import SparkContext

_ARTIFACTS = "/artifacts"
"""The name under which Spark hands out what sessions were given for their executors; here none is given anything."""

_NOWHERE = "/dev/null/none"
"""No folder, and never one: nothing can be reached from there, not even by ``..``."""

_SERVER_OF_BLOCKS = "org$apache$spark$network$netty$NettyBlockTransferService$$server"


def hand_out_nothing(context: SparkContext) -> None:
    """Have Spark hand out no folder. Call it before there is a session: the first to name a folder decides."""
    java: Any = context._jvm  # noqa: SLF001 - the only way to reach it
    _env(context).rpcEnv().fileServer().addDirectoryIfAbsent(_ARTIFACTS, java.java.io.File(_NOWHERE))


def stop_listening(context: SparkContext) -> None:
    """Close the ports of the driver and of its blocks: in local mode the executor is in the same process."""
    env = _env(context)
    for owner, name in ((env.rpcEnv(), "server"), (env.blockManager().blockTransferService(), _SERVER_OF_BLOCKS)):
        field = owner.getClass().getDeclaredField(name)
        field.setAccessible(True)
        field.get(owner).close()


def _env(context: SparkContext) -> Any:
    return context._jsc.sc().env()  # noqa: SLF001 - the only way to reach it
