"""Spark's ports: whoever lacks the secret of that start gets no answer at any of them, also on loopback."""

import contextlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.process import descendants
from tests.processes.test_asleep import admin_url, deleted
from tests.processes.test_cluster import listening
from tests.processes.test_deaths import PAUSE, WARM, javas
from tests.support import stores
from tests.support.operators import ADMIN, run_at_once
from tests.support.server import ServerProcess, waiting
from tests.support.spark_client import ENDPOINTS, SparkClient

ROOT = Path(__file__).parents[2]

SESSION = """
import json, sys
from pathlib import Path
from pyspark import SparkContext
from conclave.config.settings import Config
from spark import session
from spark.java import Java
from spark.work_folder import WorkFolder
if sys.argv[2] != "as it is":
    session.stop_listening = lambda _: None
if sys.argv[2] == "open":
    session.hand_out_nothing = lambda _: None
    session._protection = lambda _: {}
java = Java()
spark = session.build_session(Config(), WorkFolder(Path(sys.argv[1])), java)
spark.range(3).repartition(2).collect()  # this has Spark hand out the folder of artifacts, if it may
context = spark.sparkContext
assert context.parallelize([1], 1).map(lambda number: number + 1).collect() == [2]  # in a Python that Java starts
env = context._jsc.sc().env()
found = {
    "driver": env.rpcEnv().address().port(),
    "blocks": env.blockManager().blockManagerId().port(),
    "gateway": SparkContext._gateway.gateway_parameters.port,
    "secret": env.securityManager().getSecretKey() or "",
    "token": SparkContext._gateway.gateway_parameters.auth_token,
}
print(json.dumps(found), flush=True)
sys.stdin.readline()
spark.stop()
java.end()
"""

ENDPOINTS_OF_LOCAL_MODE = {*ENDPOINTS} - {"CoarseGrainedScheduler"}

LONG = 30
"""Seconds in which who knows the secret gets an answer, also on a busy machine; other questions wait so long."""

WRONG = "0" * 64
"""As long as those that Spark makes."""


@contextlib.contextmanager
def session(folder: Path, kind: str) -> Iterator[dict[str, str | int]]:
    """Have the session of a run, and say its ports and secrets.

    ``kind``: "as it is"; "listening", where the ports stay open as those of a cluster's driver; or "open", where they
    are as Spark has them.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", SESSION, folder / "work", kind],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    try:
        yield json.loads(process.stdout.readline()) | {"pid": process.pid}
    finally:
        process.communicate("\n")


def test_only_the_port_of_its_python_is_open_and_answers_who_has_its_token(tmp_path: Path) -> None:
    with SparkClient() as client, session(tmp_path, "as it is") as told:
        gateway, secret, token = int(told["gateway"]), str(told["secret"]), str(told["token"])
        processes = [int(told["pid"]), *descendants(int(told["pid"]))]
        assert listening(processes) == [(127, gateway)]
        assert client.answers(gateway) == []
        assert client.answers(gateway, WRONG) == []
        assert client.answers(gateway, token, LONG) == ["the gateway"]
        assert all(secret not in each and token not in each for pid in processes for each in shown(pid))
        assert [path for path in tmp_path.rglob("*") if path.is_file() and secret in path.read_text("latin-1")] == []


def test_ports_that_are_open_answer_who_knows_the_secret_and_nobody_else(tmp_path: Path) -> None:
    """Those of a driver are open while it starts, and all the time where it has a cluster."""
    with SparkClient() as client, session(tmp_path, "listening") as told:
        driver, blocks, secret = int(told["driver"]), int(told["blocks"]), str(told["secret"])
        for port in (driver, blocks):
            assert client.answers(port) == []
            assert client.answers(port, WRONG) == []
        assert {*client.answers(driver, secret, LONG)} == {*ENDPOINTS_OF_LOCAL_MODE, "the verifier"}
        assert client.answers(blocks, secret, LONG) == ["blocks"]


def test_as_spark_has_them_its_ports_answer_anybody_and_hand_out_every_file(tmp_path: Path) -> None:
    """What the other tests take for no answer would be one."""
    with SparkClient() as client, session(tmp_path, "open") as told:
        assert {*client.answers(int(told["driver"]), seconds=LONG)} == {
            *ENDPOINTS_OF_LOCAL_MODE,
            "the verifier",
            "files",
        }
        assert client.answers(int(told["blocks"]), seconds=LONG) == ["blocks"]


def shown(pid: int) -> Iterator[str]:
    """The command line of a process, which all users may read, and its environment."""
    for name in ("cmdline", "environ"):
        with contextlib.suppress(OSError):
            yield Path(f"/proc/{pid}/{name}").read_text("latin-1")


def expect_no_answer(client: SparkClient, java: int, others: Sequence[int]) -> None:
    """Only Java listens, at one port of loopback, for its Python; that does not answer."""
    [(address, port)] = listening([java])
    assert address == 127
    assert listening(others) == []
    assert client.answers(port) == []
    assert client.answers(port, WRONG) == []


def test_a_server_whose_java_waits_for_the_next_run_answers_nobody(tmp_path: Path) -> None:
    with SparkClient() as client, ServerProcess(tmp_path, WARM, admin=ADMIN) as server:
        server.wait_for("cleanup_run")
        stores.make_due(tmp_path / "conclave.db")
        run_at_once(admin_url(server))
        for _ in waiting("a run by Spark"):
            if deleted(server):
                break
        (java,) = javas(tmp_path)
        expect_no_answer(client, java, [pid for pid in server.descendants() if pid != java])
        expect_private(tmp_path)
        assert server.stop()[0] == 0


def test_a_run_by_hand_answers_nobody(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, '[cleanup]\nengine = "sql"\n') as server:
        server.wait_for("cleanup_run")
        server.stop()
    stores.make_due(tmp_path / "conclave.db")
    server.config.write_text("")
    command = [sys.executable, "-P", "-c", PAUSE, "cleanup", "run", "--config", str(server.config)]
    with (
        SparkClient() as client,
        subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}
        ) as run,
    ):
        assert run.stdout
        try:
            assert run.stdout.readline() == b"in a run\n"
            (java,) = javas(tmp_path)
            expect_no_answer(client, java, [run.pid])
            expect_private(tmp_path)
        finally:
            run.kill()


def expect_private(folder: Path) -> None:
    """Nobody else comes to what Java and its Python have in files, sockets among them."""
    [work] = (folder / "conclave.data" / "work").iterdir()
    for path in (work.parent, work):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert any(path.is_socket() for path in work.iterdir())
    assert not (work / "gateway").exists(), "the port and the token of the gateway, once they were read"
