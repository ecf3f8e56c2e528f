"""The units of systemd: their syntax, how exposed they are, and that what they allow is enough."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support import confined
from tests.support.server import ServerProcess, conclave

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "deploy" / "systemd"
SERVER, BACKUP = UNITS / "conclave.service", UNITS / "conclave-backup.service"

MOST_EXPOSED = {SERVER: 1.5, BACKUP: 0.8}
"""Of 10, as `systemd-analyze security` counts."""

with_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
with_seccomp = pytest.mark.skipif(not confined.is_possible(), reason="needs systemd-analyze and libseccomp")


def analyze(*arguments: str | Path, cwd: Path) -> str:
    ran = subprocess.run(["systemd-analyze", "--no-pager", *arguments], cwd=cwd, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """A folder with the units, in which the command is one that this machine has."""
    for unit in UNITS.iterdir():
        text = unit.read_text().replace("/opt/conclave/.venv/bin/conclave", sys.executable)
        (tmp_path / unit.name).write_text(text)
    return tmp_path


@with_systemd
def test_systemd_finds_no_fault(units: Path) -> None:
    names = sorted(f"./{unit.name}" for unit in UNITS.iterdir())
    assert analyze("verify", "--man=no", *names, cwd=units) == ""


@with_systemd
@pytest.mark.parametrize("unit", MOST_EXPOSED, ids=lambda unit: unit.stem)
def test_they_are_hardly_exposed(unit: Path, units: Path) -> None:
    said = analyze("security", "--offline=true", f"./{unit.name}", cwd=units)
    [level] = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert float(level) <= MOST_EXPOSED[unit], said


@pytest.mark.parametrize("unit", MOST_EXPOSED, ids=lambda unit: unit.stem)
def test_nothing_of_messages_gets_into_dumps_or_swap(unit: Path) -> None:
    found = confined.settings(unit)
    assert (found["LimitCORE"], found["MemorySwapMax"], found["UMask"]) == (["0"], ["0"], ["0077"])


def test_the_timer_and_the_server_name_what_they_start() -> None:
    assert confined.settings(UNITS / "conclave-backup.timer").get("Unit", [BACKUP.name]) == [BACKUP.name]
    for unit in MOST_EXPOSED:
        [command] = confined.settings(unit)["ExecStart"]
        name, *rest = command.split()
        assert name == "/opt/conclave/.venv/bin/conclave"
        assert conclave(rest[0], "--help", cwd=ROOT).returncode == 0
    assert confined.settings(SERVER)["Type"] == ["notify"]


def within(unit: Path) -> tuple[str, ...]:
    return (sys.executable, "-P", confined.__file__, str(unit))


@with_seccomp
def test_what_is_not_allowed_fails(tmp_path: Path) -> None:
    tries = """
import os, socket
try:
    os.chroot("/")
except PermissionError:
    print("refused")
socket.socket(socket.AF_NETLINK)
"""
    ran = subprocess.run([*within(SERVER), sys.executable, "-c", tries], cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout == "refused\n"
    assert "Address family not supported" in ran.stderr


@with_seccomp
@pytest.mark.parametrize("engine", ["sql", "spark"])
def test_a_server_a_run_and_a_backup_need_no_more(tmp_path: Path, engine: str) -> None:
    archive = '[archive]\nafter = "1d"\n' if engine == "spark" else ""
    settings = f'[cleanup]\nengine = "{engine}"\ndisk_reserve = "1m"\n{archive}'
    with ServerProcess(tmp_path, settings, within=within(SERVER)) as server:
        assert server.wait_for("cleanup_run")["error"] == ""
        backup = ("-P", "-m", "conclave", "backup", "--config", str(server.config), "backups")
        ran = subprocess.run([*within(BACKUP), sys.executable, *backup], cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        assert server.stop()[0] == 0


def test_what_the_page_on_the_vault_has_to_paste_lets_the_server_write_the_copy(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operations" / "vault.md").read_text(encoding="utf-8")
    section = page.partition("\n## Settings\n")[2].partition("\n## ")[0]
    (settings,) = re.findall(r"^```toml\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
    (block,) = re.findall(r"^```sh\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
    vault = tomllib.loads(settings)["vault"]
    assert vault["path"].removeprefix("/var/lib/") in confined.settings(SERVER)["StateDirectory"][0].split()
    here = block.replace("-o conclave -g conclave ", "")
    for each in ("/etc/", "/mnt/"):
        here = re.sub(rf"(?<=[ \"=-]){each}", f"{tmp_path}{each}", here)
    subprocess.run(["bash", "-euc", f'systemctl() {{ test "$*" = daemon-reload; }}\n{here}'], check=True)
    assert all((tmp_path / each.removeprefix("/")).is_dir() for each in vault["copies"])
    text = (tmp_path / "etc/systemd/system" / f"{SERVER.name}.d" / "vault.conf").read_text()
    section, paths = text.replace(str(tmp_path), "").splitlines()
    assert (section, paths.partition("=")[0]) == ("[Service]", "ReadWritePaths")
    assert [each.removeprefix("-") for each in paths.partition("=")[2].split()] == vault["copies"]


@pytest.mark.parametrize("place", [SERVER, ROOT / "docs" / "operations" / "install.md"], ids=lambda place: place.name)
def test_each_setting_that_may_lead_out_of_what_the_units_may_write_is_named(place: Path) -> None:
    text = place.read_text(encoding="utf-8")
    named = ("database_path", "data_path", "archive.path", "vault.path", "vault.copies")
    assert [each for each in named if each not in text] == []
