"""The server as a process: starting, refusing to, serving, stopping, dying."""

import asyncio
import contextlib
import os
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aiohttp import ClientSession

from conclave.store.engine import schema
from tests.processes.test_deaths import javas
from tests.support import stores
from tests.support.certificate import TLS, make_certificate
from tests.support.client import PASSWORD, Client, RefusedError, encode
from tests.support.sample import some
from tests.support.server import STOP_SECONDS, ServerProcess, alive, conclave, waiting

SQL = '[cleanup]\nengine = "sql"\n'
NO_FIXED_PORT = "[admin]\nlisten_port = 0\n"


def lines(process: subprocess.CompletedProcess[str]) -> list[str]:
    """What a command says, but for the log."""
    return [line for line in process.stderr.splitlines() if not line.startswith("{")]


@pytest.mark.parametrize(
    ("modules", "spared"),
    [
        # cryptography is for a server with keys, which loads it when it opens them
        (
            "conclave.cli.serve, conclave.server.run, conclave.server.app",
            ("pyspark", "pyarrow", "adbc_driver_sqlite", "cryptography"),
        ),
        ("conclave.cli.backup", ("pyspark", "aiohttp", "cryptography")),
    ],
)
def test_what_is_not_needed_is_not_imported(modules: str, spared: tuple[str, ...]) -> None:
    program = f"import sys, {modules}; sys.exit(' '.join(name for name in {spared!r} if name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stderr.strip() == ""


def test_nothing_is_wrong_with_a_first_start(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        server.wait_for("cleanup_run")
        assert [each for each in server.events() if each.get("level") != "info"] == []


async def test_a_stop_finishes_what_is_under_way_and_empties_the_wal(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        async with ClientSession() as http:
            alice = await Client.register(http, server.url, "alice")
            group = await alice.create_group("g")
            sends = [asyncio.create_task(alice.send(group)) for _ in range(50)]
            await asyncio.sleep(0.01)
            stopping = asyncio.to_thread(server.stop)
            status, seconds = await stopping
            acknowledged = [each for each in await asyncio.gather(*sends, return_exceptions=True) if type(each) is int]
    assert status == 0
    assert seconds < STOP_SECONDS
    assert not list(tmp_path.glob("conclave.db-*")), "neither a WAL nor its index is left"
    with contextlib.closing(sqlite3.connect(tmp_path / "conclave.db")) as connection:
        stored = {row[0] for row in connection.execute("SELECT sequence_num FROM messages")}
    assert set(acknowledged) <= stored


async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        async with ClientSession() as http:
            alice = await Client.register(http, server.url, "alice")
            group = await alice.create_group("g")
            sends = [asyncio.create_task(alice.send(group, b"x" * 100)) for _ in range(200)]
            await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
            server.process.kill()
            acknowledged = [each for each in await asyncio.gather(*sends, return_exceptions=True) if type(each) is int]
            assert acknowledged
    with ServerProcess(tmp_path, SQL) as server:
        async with ClientSession() as http:
            again = Client(http, server.url, alice.token)
            assert set(acknowledged) <= set(await again.numbers(group))
            assert await again.send(group) > max(acknowledged)


def test_the_worker_and_its_jvm_end_with_the_server_however_it_ends(tmp_path: Path) -> None:
    for ending in some(("stop", "kill"), 1, "ends of a server"):
        with ServerProcess(tmp_path, 'cleanup_interval = "1s"\n[cleanup]\nkeep_warm = "1y"\n') as server:
            stores.make_due(tmp_path / "conclave.db")
            for _ in waiting("Java"):
                if len(server.descendants()) >= 2 and javas(tmp_path):
                    break
            started = server.descendants()
            assert len(started) >= 2, "the worker and its JVM"
            if ending == "stop":
                assert server.stop()[0] == 0
            else:
                server.process.kill()
                server.process.wait()
            for _ in waiting("the worker's end"):
                if not any(alive(pid) for pid in started):
                    break
            assert not list((tmp_path / "conclave.data" / "work").iterdir()), "no temporary file is left"


def test_the_server_runs_cleanup_by_itself_and_again_after_the_worker_died(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, 'cleanup_interval = "1s"\n' + SQL) as server:
        server.wait_for("cleanup_run")
        [worker] = server.descendants()
        os.kill(worker, 9)
        server.wait_for("cleanup_worker_ended")
        for _ in waiting("a new worker's run"):
            events = [event["event"] for event in server.events()]
            if "cleanup_run" in events[events.index("cleanup_worker_ended") :]:
                break


async def test_without_java_the_server_serves_and_says_what_to_install(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, env={"PATH": str(tmp_path), "JAVA_HOME": ""}) as server:
        reason = server.wait_for("cleanup_unavailable")["reason"]
        assert "openjdk-17-jre-headless" in reason
        async with ClientSession() as http:
            assert (await (await http.get(f"{server.url}/healthz")).json()) == {"status": "degraded"}
            assert await Client.register(http, server.url, "alice")
        assert [event["event"] for event in server.events()].count("cleanup_unavailable") == 1, "nothing loops"


async def test_a_broken_connection_moves_no_watermark_on_the_real_event_loop(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        async with ClientSession() as http:
            alice = await Client.register(http, server.url, "alice")
            bob = await Client.register(http, server.url, "bob")
            group = await alice.create_group("g", expiry=0)
            await bob.join(group)
            for _ in range(30):
                await alice.send(group, bytes(750_000))
            port = int(server.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            writer.write(bob.raw_get(f"/groups/{group}/messages"))
            await reader.read(16)
            await asyncio.sleep(0.5)
            assert watermark_of(tmp_path, "bob") == 0
            writer.transport.abort()
            await asyncio.sleep(0.5)
            assert watermark_of(tmp_path, "bob") == 0
            assert len(await bob.fetch_all(group)) == 30
            await bob.get("/me")
            assert watermark_of(tmp_path, "bob") == 30


async def test_a_client_that_closes_as_soon_as_it_has_everything_has_fetched_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        async with ClientSession() as http:
            alice = await Client.register(http, server.url, "alice")
            bob = await Client.register(http, server.url, "bob")
            group = await alice.create_group("g", expiry=0)
            await bob.join(group)
            port = int(server.url.rpartition(":")[2])
            for turn in range(60):
                number = await alice.send(group, bytes(500_000 if turn % 3 == 0 else 10))
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(bob.raw_get(f"/groups/{group}/messages?after={number - 1}"))
                headers = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                await reader.readexactly(int(headers.split("content-length: ")[1].split("\r\n")[0]))
                writer.transport.abort()
                for _ in waiting(f"the watermark to reach {number}"):
                    if watermark_of(tmp_path, "bob") == number:
                        break


def watermark_of(folder: Path, username: str) -> int:
    program = "SELECT watermark FROM members JOIN users USING (user_id) WHERE username = ?"
    with contextlib.closing(sqlite3.connect(folder / "conclave.db")) as connection:
        return int(connection.execute(program, (username,)).fetchone()[0])


def test_files_are_the_operators_alone(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL):
        assert stat.S_IMODE((tmp_path / "conclave.data").stat().st_mode) == 0o700
        for path in tmp_path.glob("conclave.db*"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_second_server_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        second = conclave("serve", "--config", server.config, cwd=tmp_path)
        assert second.returncode == 1
        [line] = lines(second)
        assert "another server is running" in line


def test_a_second_server_on_the_same_database_with_other_data_is_refused(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL):
        (tmp_path / "other.toml").write_text(f'listen_port = 0\ndata_path = "elsewhere"\n{NO_FIXED_PORT}')
        [line] = lines(conclave("serve", "--config", "other.toml", cwd=tmp_path))
        assert "another server is running" in line


def test_a_start_that_fails_half_way_ends(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        server.stop()
    with contextlib.closing(sqlite3.connect(tmp_path / "conclave.db")) as connection:
        connection.execute("DROP TABLE server_state")
    failed = conclave("serve", "--config", server.config, cwd=tmp_path)
    assert failed.returncode == 1
    assert "no such table" in failed.stderr


async def test_a_failure_inside_logs_neither_password_nor_token_nor_body(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        async with ClientSession() as http:
            alice = await Client.register(http, server.url, "alice")
            group = await alice.create_group("g")
            with contextlib.closing(sqlite3.connect(tmp_path / "conclave.db")) as connection:
                connection.execute("ALTER TABLE sessions RENAME COLUMN last_used_at TO elsewhere")
                connection.execute("ALTER TABLE members RENAME COLUMN watermark TO elsewhere")
            for request in (alice.login("alice"), alice.send(group, b"SECRET BODY")):
                with pytest.raises(RefusedError) as refused:
                    await request
                assert refused.value.status == 500
            _, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
            writer.write(f"GET /secret\x00path HTTP/1.1\r\nAuthorization: Bearer {alice.token}\r\n\r\n".encode())
            await asyncio.sleep(0.2)
            writer.close()
        server.stop()
    log = (tmp_path / "server.log").read_text()
    assert "request_failed" in log
    for secret in (PASSWORD, alice.token, alice.token[:16], "SECRET", encode(b"SECRET BODY"), "argon2id", "secret"):
        assert secret not in log


async def test_a_stop_with_clients_that_take_nothing_is_quick(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        async with ClientSession() as http:
            alice = await Client.register(http, server.url, "alice")
            group = await alice.create_group("g")
            for _ in range(20):
                await alice.send(group, bytes(750_000))
            writers = []
            for _ in range(3):
                _, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]), limit=1024)
                writer.write(alice.raw_get(f"/groups/{group}/messages"))
                writers.append(writer)
            await asyncio.sleep(1)
            status, seconds = await asyncio.to_thread(server.stop)
            for writer in writers:
                writer.transport.abort()
    assert status == 0
    assert seconds < STOP_SECONDS


def test_a_dead_jvm_is_replaced(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, 'cleanup_interval = "1s"\n[cleanup]\nkeep_warm = "1y"\n') as server:
        stores.make_due(tmp_path / "conclave.db")
        for _ in waiting("a run by Java"):
            if any(sum(each["deleted"].values()) for each in server.events() if each["event"] == "cleanup_run"):
                break
        stores.make_due(tmp_path / "conclave.db")
        for pid in server.descendants():
            with contextlib.suppress(OSError):  # what Java starts for a moment may have ended
                if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                    os.kill(pid, 9)
        server.wait_for("cleanup_worker_ended")
        for _ in waiting("a run of a new session"):
            events = server.events()
            ended = [event["event"] for event in events].index("cleanup_worker_ended")
            if any(event["event"] == "cleanup_run" and not event["error"] for event in events[ended:]):
                break


def test_an_interval_longer_than_any_sleep_is_no_fault(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, 'cleanup_interval = "1000y"\n' + SQL) as server:
        server.wait_for("cleanup_run")
        time.sleep(2)
        assert "cleanup_worker_ended" not in [event["event"] for event in server.events()]


def test_a_port_in_use_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (tmp_path / "c.toml").write_text(
            f'listen_address = "127.0.0.1"\nlisten_port = {taken.getsockname()[1]}\n{NO_FIXED_PORT}'
        )
        [line] = lines(conclave("serve", "--config", "c.toml", cwd=tmp_path))
        assert line.startswith("conclave: cannot listen on 127.0.0.1 port")


def test_config_faults_stop_the_start_with_a_line_each(tmp_path: Path) -> None:
    (tmp_path / "conclave.toml").write_text('message_retention = "5x"\nlisten_port = -1\ncolour = "red"\n')
    refused = conclave("serve", cwd=tmp_path)
    assert refused.returncode == 1
    assert len(lines(refused)) == 3
    assert not (tmp_path / "conclave.db").exists()


def test_a_newer_schema_and_a_foreign_database_are_refused(tmp_path: Path) -> None:
    for text, sql in (
        ("use a newer Conclave", f"PRAGMA application_id = {schema.APPLICATION_ID}; PRAGMA user_version = 9999"),
        ("not one of Conclave's", "CREATE TABLE t (x)"),
    ):
        path = tmp_path / "conclave.db"
        path.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.executescript(sql)
        before = path.read_bytes()
        refused = conclave("serve", cwd=tmp_path)
        assert refused.returncode == 1
        assert text in lines(refused)[-1]
        assert path.read_bytes() == before, "left as it was"


async def test_tls_is_served_with_a_certificate(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    with ServerProcess(tmp_path, TLS + SQL) as server:
        assert server.url.startswith("https://")
        async with ClientSession() as http:
            response = await http.get(f"{server.url}/healthz", ssl=False)
            assert (await response.json()) == {"status": "ok"}
    (tmp_path / "cert.pem").write_text("nothing")
    [line] = lines(conclave("serve", "--config", server.config, cwd=tmp_path))
    assert line == "conclave: tls_cert_path: cert.pem: contains no certificate in PEM"


async def test_cleanup_by_hand_prints_what_went_and_why(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        server.wait_for("cleanup_run")
        async with ClientSession() as http:
            alice = await Client.register(http, server.url, "alice")
            group = await alice.create_group("g", expiry=1)
            await alice.post(f"/groups/{group}/messages", mls_message=encode(b"x"))
            await asyncio.sleep(2.1)
        done = conclave("cleanup", "run", "--config", server.config, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        [row] = [line for line in done.stdout.splitlines() if "older than the group's expiry" in line]
        assert row.split("│")[-2].strip() == "1"


def test_cleanup_by_hand_refuses_what_it_must_not_do(tmp_path: Path) -> None:
    missing = conclave("cleanup", "run", cwd=tmp_path)
    assert missing.returncode == 1
    assert "no such database" in lines(missing)[1]
    assert not (tmp_path / "conclave.db").exists()
    with ServerProcess(tmp_path, SQL) as server:
        (tmp_path / "other.toml").write_text(
            server.config.read_text().replace("[cleanup]", 'message_retention = "1s"\n[cleanup]')
        )
        other = conclave("cleanup", "run", "--config", "other.toml", cwd=tmp_path)
        assert other.returncode == 1
        assert lines(other)[0].startswith("conclave: message_retention: this configuration differs")
