"""Programs of web/test, bundled for Node as the page is."""

import shutil
import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).parents[2] / "web"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(
    NODE is None or not (WEB / "node_modules").is_dir(), reason="needs Node, and what `make web` installs"
)


def bundled(folder: Path) -> Path:
    """Bundle the programs into a folder, and return it."""
    subprocess.run([NODE or "node", WEB / "tooling" / "tests.mjs", folder], check=True, cwd=WEB)
    return folder
