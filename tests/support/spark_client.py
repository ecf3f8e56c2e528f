"""Speaks to the ports of another Spark as one of its own processes would, with or without its secret.

As a program it is that Java's Python: it takes a line of JSON for each port, and answers with what has answered there.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]

ENDPOINTS = (
    "HeartbeatReceiver",
    "BlockManagerMaster",
    "BlockManagerEndpoint1",
    "MapOutputTracker",
    "OutputCommitCoordinator",
    "LocalSchedulerBackendEndpoint",
    "CoarseGrainedScheduler",
)
"""What a driver has, in local mode or on a cluster."""

REFUSED_SECONDS = 5
"""Who does not know the secret is refused at once, or, where it talks to another kind of port, gets no answer."""


class SparkClient:
    """A Java process with Spark's own client code."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            env=os.environ | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def answers(self, port: int, secret: str = "", seconds: int = REFUSED_SECONDS) -> list[str]:
        """Return what has answered at a port of loopback, by name. ``secret``: "" for none.

        ``seconds``: how long it waits for each answer. The file that it asks for is this program's.
        """
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(
            json.dumps({"port": port, "secret": secret, "seconds": seconds, "file": __file__}) + "\n"
        )
        self._process.stdin.flush()
        found: list[str] = json.loads(self._process.stdout.readline())
        return found


def main() -> None:
    from pyspark.java_gateway import launch_gateway

    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    asks: list[Callable[..., list[str]]] = [_rpc, _files, _blocks, _gateway]
    with ThreadPoolExecutor(len(asks)) as threads:  # most wait for an answer in vain
        for line in sys.stdin:
            task = json.loads(line)
            answers = [threads.submit(ask, gateway, **task) for ask in asks]
            told.write(json.dumps([each for answer in answers for each in answer.result()]) + "\n")
    gateway.shutdown()


def _conf(jvm: Any, secret: str, seconds: int) -> tuple[Any, Any]:
    """Return the settings of a process that knows ``secret``, and what authenticates it."""
    conf = jvm.org.apache.spark.SparkConf(False)
    settings = {"spark.master": "spark://none:1", "spark.app.id": "probe"}
    settings |= dict.fromkeys(
        ("spark.rpc.askTimeout", "spark.rpc.lookupTimeout", "spark.network.timeout"), f"{seconds}s"
    )
    if secret:
        settings |= {
            "spark.authenticate": "true",
            "spark.authenticate.secret": secret,
            "spark.network.crypto.enabled": "true",
            "spark.network.crypto.authEngineVersion": "2",
            "spark.network.crypto.cipher": "AES/GCM/NoPadding",
        }
    for name, value in settings.items():
        conf.set(name, value)
    security = jvm.org.apache.spark.SecurityManager
    no_file = getattr(security, "$lessinit$greater$default$3")()
    return conf, security(conf, jvm.scala.Option.empty(), no_file)


def _module(jvm: Any, name: str) -> Any:
    return jvm.java.lang.Class.forName(f"{name}$").getField("MODULE$").get(None)


def _rpc(gateway: Any, port: int, secret: str, seconds: int, **_: str) -> list[str]:
    """Ask for each endpoint, as an executor does before it sends it anything."""
    from py4j.protocol import Py4JJavaError

    jvm = gateway.jvm
    conf, security = _conf(jvm, secret, seconds)
    env = _module(jvm, "org.apache.spark.rpc.RpcEnv").create("probe", *["127.0.0.1"] * 2, 0, conf, security, 0, True)
    found = []
    try:
        for name in ENDPOINTS:
            try:
                env.setupEndpointRef(jvm.org.apache.spark.rpc.RpcAddress("127.0.0.1", port), name)
                found.append(name)
            except Py4JJavaError as error:
                if "Cannot find endpoint" in str(error):
                    found.append("the verifier")
                else:
                    return found
    finally:
        env.shutdown()
    return found


def _files(gateway: Any, port: int, secret: str, seconds: int, file: str) -> list[str]:
    """Fetch a file as an executor fetches an artifact, but one that is none."""
    from py4j.protocol import Py4JJavaError

    jvm = gateway.jvm
    conf, security = _conf(jvm, secret, seconds)
    env = _module(jvm, "org.apache.spark.rpc.RpcEnv").create("probe", *["127.0.0.1"] * 2, 0, conf, security, 0, True)
    try:
        channel = env.openChannel(f"spark://127.0.0.1:{port}/artifacts/{'../' * 20}{file.lstrip('/')}")
        return ["files"] if jvm.java.nio.channels.Channels.newInputStream(channel).read() >= 0 else []
    except Py4JJavaError:
        return []
    finally:
        env.shutdown()


def _blocks(gateway: Any, port: int, secret: str, seconds: int, **_: str) -> list[str]:
    """Open a block, as an executor fetches those of others. There is none of that name: that is the answer."""
    from py4j.protocol import Py4JJavaError

    jvm = gateway.jvm
    conf, security = _conf(jvm, secret, seconds)
    network, none = jvm.org.apache.spark.network, jvm.scala.Option.empty()
    transport = _module(jvm, "org.apache.spark.network.netty.SparkTransportConf").fromSparkConf(
        conf, "shuffle", 1, none, none
    )
    context = network.TransportContext(transport, network.server.NoOpRpcHandler())
    bootstraps = jvm.java.util.ArrayList()
    if secret:
        bootstraps.add(network.crypto.AuthClientBootstrap(transport, "probe", security))
    try:
        client = context.createClientFactory(bootstraps).createClient("127.0.0.1", port)
        names = gateway.new_array(jvm.java.lang.String, 1)
        names[0] = "broadcast_0"
        request = network.shuffle.protocol.OpenBlocks("probe", "driver", names).toByteBuffer()
        client.sendRpcSync(request, 1000 * seconds)
    except Py4JJavaError as error:
        return ["blocks"] if "Block broadcast_0 not found" in str(error) else []
    else:
        return ["blocks"]
    finally:
        context.close()


def _gateway(_: Any, port: int, secret: str, **__: Any) -> list[str]:
    """Ask for the time, as the Python of that Java does anything."""
    from py4j.java_gateway import GatewayParameters, JavaGateway
    from py4j.protocol import Py4JError

    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=secret or None))
    try:
        return ["the gateway"] if gateway.jvm.java.lang.System.currentTimeMillis() else []
    except Py4JError:
        return []
    finally:
        gateway.close()


if __name__ == "__main__":
    main()
