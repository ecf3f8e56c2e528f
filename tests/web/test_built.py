"""The committed files of the browser chat match its sources."""

import gzip
import json
import subprocess
from pathlib import Path

import pytest

from conclave.web import files
from tests.web.node import NODE, WEB, needs_node

MOST_BYTES = 180 * 1024
"""The limit for a first visit, compressed."""

UNLOADED = {"licences.txt", "icon-512.png", "icon-maskable.png"}
"""Files that a first visit does not load."""


@needs_node
@pytest.mark.system
def test_the_committed_files_match_the_sources(tmp_path: Path) -> None:
    built = tmp_path / "static"
    subprocess.run([NODE or "node", "build.mjs", built], check=True, cwd=WEB)
    made = {each.name: each.read_bytes() for each in built.iterdir()}
    kept = {each.name: each.read_bytes() for each in files.STATIC.iterdir()}
    assert made.keys() == kept.keys(), "make web"
    assert [name for name in made if made[name] != kept[name]] == [], "make web"


@needs_node
def test_installed_packages_match_the_lock_file() -> None:
    locked = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    installed = json.loads((WEB / "node_modules" / ".package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert {name: each["version"] for name, each in installed.items()}.items() <= {
        name: each.get("version") for name, each in locked.items()
    }.items()
    assert all("integrity" in each for name, each in locked.items() if name)
    assert not any("resolved" in each for each in locked.values()), "no registry's address"


def test_the_size_of_a_first_visit_is_limited() -> None:
    sizes = {
        each.name: len(gzip.compress(each.read_bytes())) for each in files.STATIC.iterdir() if each.name not in UNLOADED
    }
    assert sum(sizes.values()) <= MOST_BYTES, sizes


def test_the_page_refers_only_to_existing_files() -> None:
    page = (files.STATIC / files.PAGE).read_text(encoding="utf-8")
    manifest = json.loads((files.STATIC / "manifest.webmanifest").read_text(encoding="utf-8"))
    named = {part.partition('"')[0] for part in page.split('="/')[1:]}
    named |= {each["src"].lstrip("/") for each in manifest["icons"]}
    assert named <= {each.name for each in files.STATIC.iterdir()}
    assert "<script>" not in page
    assert "style=" not in page
