"""`make demo` is a test too; it is done with the network cut, where the system lets a program cut itself off."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.server import PATIENCE

CUT = ("unshare", "--net", "--map-root-user")

LOOPBACK_UP = (
    'import fcntl, socket, struct; s = socket.socket(); fcntl.ioctl(s, 0x8914, struct.pack("16sh", b"lo", 0x49))'
)
"""What `ip link set lo up` does, where there is no ip."""


@dataclass
class Shown:
    """What came of the demo."""

    done: subprocess.CompletedProcess[str]
    was_cut_off: bool


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    python = f"{sys.executable} -P"
    program = f"exec {python} -m conclave.cli.demo"
    may_cut = bool(shutil.which("unshare")) and not subprocess.run([*CUT, "true"], capture_output=True).returncode
    if may_cut:
        program = f"ip link set lo up 2>/dev/null || {python} -c '{LOOPBACK_UP}'; {program}"
    command = [*(CUT if may_cut else ()), "sh", "-c", program]
    folder = tmp_path_factory.mktemp("demo")
    return Shown(subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, cwd=folder), may_cut)


def test_the_demo_shows_what_the_policies_say(shown: Shown) -> None:
    assert shown.done.returncode == 0, shown.done.stdout + shown.done.stderr
    assert shown.done.stdout.count(" ok ") == 6
    assert "WRONG" not in shown.done.stdout


SLOW = """
import asyncio, sys
from conclave.cli import demo

async def run_slowly(server, second):
    await wait_for_run(server, second)
    await asyncio.sleep(2.5)

demo.EXPIRY_SECONDS = 1
wait_for_run, demo._Server.wait_for_run = demo._Server.wait_for_run, run_slowly
sys.exit(asyncio.run(demo.main()))
"""
"""Messages live for a second and a run takes longer, on however quick a machine."""


def test_the_demo_is_true_where_a_run_takes_longer_than_messages_live(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", SLOW], capture_output=True, text=True, timeout=2 * PATIENCE, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" ok ") == 6
    lifetime = done.stdout.rpartition("expiry of ")[2].split()[0]
    assert "This machine is slow" in done.stdout
    assert f"younger than {lifetime} seconds when" in done.stdout
    assert "older than 1 seconds" in done.stdout


def test_everything_runs_with_the_network_cut(shown: Shown) -> None:
    if not shown.was_cut_off:
        pytest.skip("this system does not let a program cut itself off")
    assert shown.done.returncode == 0, shown.done.stdout + shown.done.stderr
