"""Programs of web/test, bundled for Node as the page is."""

import shutil
import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).parents[2] / "web"
NODE = shutil.which("node")
LEAST = 20


def _can_run() -> bool:
    """Tell whether there is a Node that is new enough, and what ``make web`` installs."""
    if NODE is None or not (WEB / "node_modules").is_dir():
        return False
    version = subprocess.run([NODE, "--version"], check=True, capture_output=True, text=True).stdout
    return int(version.removeprefix("v").split(".")[0]) >= LEAST


needs_node = pytest.mark.skipif(not _can_run(), reason=f"needs Node {LEAST}, and what `make web` installs")


def bundled(folder: Path) -> Path:
    """Bundle the programs into a folder, and return it."""
    subprocess.run([NODE or "node", WEB / "tooling" / "tests.mjs", folder], check=True, cwd=WEB)
    return folder
