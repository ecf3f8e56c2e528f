"""`make setup` makes a program that another user can run, whatever the mask of the one who sets it up."""

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]


def test_what_set_up_makes_under_a_strict_mask_is_readable_by_the_servers_user(tmp_path: Path) -> None:
    """The packages are left out: they would be downloaded. pip makes files by the same mask."""
    place = tmp_path / "conclave"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("conclave", "spark", "scripts", "requirements"):
        shutil.copytree(ROOT / name, place / name, ignore=ignored)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, place)
    pip = "PIP=umask 022 && install -d .venv/made && touch .venv/made/by-pip && : "
    ran = subprocess.run(["make", "setup", pip], cwd=place, umask=0o077, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    made = [path for folder in (".venv", "conclave", "spark") for path in (place / folder).rglob("*")]
    assert {path.name for path in made} >= {"python", "runtime", "__pycache__"}
    closed = [
        path
        for path in (place / ".venv", *made)
        if not path.is_symlink() and not path.stat().st_mode & (stat.S_IXOTH if path.is_dir() else stat.S_IROTH)
    ]
    assert closed == []


def test_every_line_of_the_makefile_that_installs_has_that_mask() -> None:
    told = subprocess.run(
        ["make", "--dry-run", "--always-make", "setup", ".venv/development"], cwd=ROOT, capture_output=True, text=True
    )
    installing = [line for line in told.stdout.splitlines() if any(word in line for word in ("venv", "pip ", "jars"))]
    assert installing
    assert [line for line in installing if "umask 022 &&" not in line] == []
