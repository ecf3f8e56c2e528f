"""`conclave status`: what it prints of a server that runs, and one line if none does."""

import json
import socket
from pathlib import Path

import pytest

from conclave.cli.status import Samples, ServerStatus, lines
from conclave.config.settings import Config
from tests.support.server import ServerProcess, conclave

SQL = '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n'


def test_a_server_that_runs_is_shown_on_a_screen(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        server.wait_for("cleanup_run")
        url = server.wait_for("listening")["admin_url"]
        done = conclave("status", "--config", server.config, "--url", url, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        shown = dict(line.split(":", 1) for line in done.stdout.splitlines())
        assert shown["health"].strip() == "ok"
        assert shown["last run"].strip().startswith("ok, ended ")
        assert shown["next run"].strip().startswith("everything: in ")
        assert shown["overdue"].strip() == "nothing"
        assert len(shown) <= 24
        told = json.loads(conclave("status", "--json", "--config", server.config, "--url", url, cwd=tmp_path).stdout)
        assert told["health"]["status"] == "ok"
        assert "conclave_build_info" in {each["name"] for each in told["metrics"]}
        port_of_clients = conclave("status", "--config", server.config, "--url", server.url, cwd=tmp_path)
        assert port_of_clients.returncode == 1
        without = conclave("status", "--config", server.config, cwd=tmp_path)
        assert (without.returncode, "--url" in without.stderr) == (1, True)


def test_a_part_with_a_long_name_is_told_from_its_fault(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, f'{SQL}[vault]\ncopies = ["{tmp_path}/away/copy"]\n') as server:
        assert server.wait_for("background_duty_failed")["duty"] == "vault_copies"
        url = server.wait_for("listening")["admin_url"]
        done = conclave("status", "--config", server.config, "--url", url, cwd=tmp_path)
    assert "\n  vault_copies: VaultError: vault.copies: " in done.stdout


@pytest.mark.parametrize("kind", ["token", "token_file"])
def test_a_listener_that_wants_the_token_of_the_configuration_gets_it(tmp_path: Path, kind: str) -> None:
    token = "t" * 40
    (tmp_path / "token").write_text(f"{token}\n")
    (tmp_path / "token").chmod(0o600)
    settings = f'{kind} = "{token if kind == "token" else tmp_path / "token"}"\n'
    with ServerProcess(tmp_path, SQL, admin=settings) as server:
        url = server.wait_for("listening")["admin_url"]
        done = conclave("status", "--config", server.config, "--url", url, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert "overdue:" in done.stdout
        (tmp_path / "other.toml").write_text(f'[admin]\ntoken = "{"u" * 40}"\n')
        refused = conclave("status", "--config", "other.toml", "--url", url, cwd=tmp_path)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr.endswith("/metrics: 401 Unauthorized\n")


def test_without_a_server_one_line_says_so(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        (tmp_path / "conclave.toml").write_text(f"[admin]\nlisten_port = {port}\n")
        done = conclave("status", "--config", "conclave.toml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"conclave: no server answers at http://127.0.0.1:{port}: Connection refused\n"


@pytest.mark.parametrize("url", ["127.0.0.1:9090", "https://127.0.0.1:9090", "http://", "http://[::1", "http://h:port"])
def test_what_is_no_url_is_told_in_a_line(tmp_path: Path, url: str) -> None:
    (tmp_path / "conclave.toml").write_text("")
    done = conclave("status", "--config", "conclave.toml", "--url", url, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1


def test_faults_and_a_run_that_failed_are_shown() -> None:
    run = {"outcome": "failed", "job": "everything", "started_at": 900, "finished_at": 990, "deleted": {"expired": 7}}
    health = {"status": "degraded", "faults": {"cleanup": "no\x1b[2J Java"}, "last_run": run | {"error": "no Java"}}
    samples = Samples(conclave_overdue_groups={frozenset(): 2.0}, conclave_overdue_seconds={frozenset(): 7200.0})
    shown = list(lines(ServerStatus(health, samples), Config(), 1000))
    assert ("  cleanup", "no\x1b[2J Java") in shown
    assert ("  error", "no Java") in shown
    assert ("next run", "everything: in 58min") in shown
    assert ("overdue", "2 groups, the oldest by 2h") in shown
