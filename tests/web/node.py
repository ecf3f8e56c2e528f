"""Bundles the programs of web/test for Node."""

import shutil
import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).parents[2] / "web"
NODE = shutil.which("node")
MIN_VERSION = 20


def _can_run() -> bool:
    """Return whether there is a recent Node, and ``make web`` has installed the packages."""
    if NODE is None or not (WEB / "node_modules").is_dir():
        return False
    version = subprocess.run([NODE, "--version"], check=True, capture_output=True, text=True).stdout
    return int(version.removeprefix("v").split(".")[0]) >= MIN_VERSION


needs_node = pytest.mark.skipif(not _can_run(), reason=f"needs Node {MIN_VERSION}, and what `make web` installs")


def bundled(folder: Path) -> Path:
    """Bundle the programs into a folder, and return it."""
    subprocess.run([NODE or "node", WEB / "tooling" / "tests.mjs", folder], check=True, cwd=WEB)
    return folder
