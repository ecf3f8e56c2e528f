"""Standard streams that are full, closed, or read by somebody who has had enough."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.test_service_manager import SQL, environment, heard, manager
from tests.support.server import PATIENCE, ServerProcess, waiting

__all__ = ["manager"]

LOST = "conclave: standard output: No space left on device: output was lost, but the command was executed\n"
CONCLAVE = (sys.executable, "-P", "-m", "conclave")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a database that is there."""
    folder = tmp_path_factory.mktemp("served")
    with ServerProcess(folder, SQL) as server:
        assert server.stop()[0] == 0
    return server.config


def run(redirected: str, config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a shell does that redirects its streams."""
    return subprocess.run(
        ["bash", "-c", f'"$@" {redirected}', "bash", *CONCLAVE, *arguments],
        cwd=config.parent,
        env=os.environ | {"CONCLAVE_CONFIG": str(config)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize(
    "command",
    ["--help", "user --help", "user list", "check-config conclave.toml", "cleanup history"],
)
def test_an_output_that_is_full_is_told_in_one_line(config: Path, command: str) -> None:
    done = run("> /dev/full", config, *command.split())
    assert (done.returncode, done.stderr) == (1, LOST)


def test_what_was_done_stays_done_where_the_output_is_full(config: Path) -> None:
    done = run("> /dev/full", config, "user", "create", "carol")
    assert done.returncode == 1
    assert done.stderr.endswith(LOST)
    assert "carol" in run("", config, "user", "list").stdout


@pytest.mark.parametrize("command", ["--help", "user list", "check-config conclave.toml", "cleanup history"])
def test_a_reader_who_has_had_enough_ends_a_command_silently(config: Path, command: str) -> None:
    done = run("| true", config, *command.split())
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("name", "closed"), [("no_input", "<&-"), ("no_output", ">&-"), ("no_errors", "2>&-"), ("none", "<&- >&- 2>&-")]
)
def test_commands_work_with_closed_streams(config: Path, name: str, closed: str) -> None:
    assert run(closed, config, "user", "create", name).returncode == 0
    assert name in run("", config, "user", "list").stdout


def test_a_question_without_an_input_is_refused_in_one_line(config: Path) -> None:
    assert run("", config, "user", "create", "dave").returncode == 0
    done = run("<&-", config, "user", "delete", "dave")
    assert (done.returncode, done.stderr) == (
        1,
        "conclave: no terminal for a confirmation: use --yes to skip it\n",
    )


def test_a_server_serves_with_closed_streams_and_gives_their_numbers_to_no_other_file(
    tmp_path: Path, manager: socket.socket
) -> None:
    closed = ("bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash")
    server = ServerProcess(tmp_path, SQL, env=environment(manager), within=closed)
    try:
        for _ in waiting("the server to be ready"):
            assert server.process.poll() is None
            if "READY=1" in heard(manager):
                break
        descriptors = Path(f"/proc/{server.process.pid}/fd")
        assert [str((descriptors / str(number)).readlink()) for number in range(3)] == ["/dev/null"] * 3
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
    finally:
        server.__exit__()
