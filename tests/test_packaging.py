"""What is installed: which licence, which versions, and what an installation of the library alone says."""

import ast
import hashlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

OFFICIAL = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""SHA-256 of https://www.apache.org/licenses/LICENSE-2.0.txt."""

LEANED_ON = ("aiohttp", "aiosqlite")
"""Libraries of which something private is used: the next minor version may change it."""


def required() -> dict[str, str]:
    """Return the versions that are allowed of what server and chat need, by the name of the package."""
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *extras["server"], *extras["client"]]
    names = [line.partition(">")[0].partition("=")[0].partition("[")[0] for line in lines]
    return dict(zip(names, lines, strict=True))


def test_the_licence_is_apache_2_to_the_letter() -> None:
    assert (PROJECT["license"], PROJECT["license-files"]) == ("Apache-2.0", ["LICENSE", "NOTICE"])
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == OFFICIAL


@pytest.mark.parametrize("library", LEANED_ON)
def test_what_is_used_of_the_inside_of_a_library_has_a_bound(library: str) -> None:
    least, _, below = required()[library].partition(">=")[2].partition(",<")
    assert (int(least.split(".")[0]), int(least.split(".")[1]) + 1) == tuple(map(int, below.split(".")))


def test_nothing_private_is_imported_from_a_library_without_a_bound() -> None:
    found = set()
    for path in (each for top in ("conclave", "spark") for each in (ROOT / top).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and any(name.name.startswith("_") for name in node.names):
                found.add(str(node.module).partition(".")[0])
    pinned = {name for name, line in required().items() if "==" in line}
    assert found - {"conclave", "spark"} - pinned <= set(LEANED_ON)


def test_the_library_alone_says_in_a_line_which_extra_the_command_needs(tmp_path: Path) -> None:
    program = "import sys; sys.modules['click'] = None; from conclave.__main__ import main; main()"
    asked = subprocess.run([sys.executable, "-P", "-c", program, "serve"], capture_output=True, text=True, cwd=tmp_path)
    assert (asked.returncode, asked.stdout) == (1, "")
    [line] = asked.stderr.splitlines()
    assert line.startswith("conclave: click is not installed. ")
    assert "the extra server, the chat the extra client." in line
    assert "pip install '.[server]' in their folder" in line


def test_the_package_has_a_name_that_is_nobody_elses_and_tells_its_types() -> None:
    assert PROJECT["name"] == "conclave-messaging"
    assert (ROOT / "conclave" / "py.typed").is_file()


def test_nobody_is_told_to_install_conclave_by_name() -> None:
    """It is on no index, where `conclave` is somebody else's, and anybody may take another name."""
    tops = ("conclave", "deploy", "docs", "scripts", "spark")
    files = [path for top in tops for path in (ROOT / top).rglob("*") if path.suffix not in (".pyc", ".png")]
    files += [ROOT / name for name in ("README.md", "Makefile", "pyproject.toml")]
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in files if path.is_file()}
    told = [(path, each) for path, text in texts.items() for each in re.findall(r"pip install [^\n`]*", text)]
    assert len(told) > 10
    by_name = re.compile(r"[\s'\"]conclave([-_]messaging)?(\[\w*\]|[=<>~@]|['\"\s]|$)")
    assert [(path, each) for path, each in told if by_name.search(each)] == []


def test_the_crates_of_the_live_peer_have_exact_versions_in_its_manifest() -> None:
    """A lock file would name the registry that it was made with."""
    peer = ROOT / "tests" / "interop_peer"
    manifest = tomllib.loads((peer / "Cargo.toml").read_text(encoding="utf-8"))
    listed = manifest["dependencies"] | manifest["target"]["cfg(any())"]["dependencies"]
    tables = {name: {"version": told} if isinstance(told, str) else told for name, told in listed.items()}
    versions = {each["version"] for each in tables.values()}
    assert {version for version in versions if not re.fullmatch(r"=\d+\.\d+\.\d+", version)} == set()
    assert "tests/interop_peer/Cargo.lock" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    if (peer / "Cargo.lock").is_file():  # what cargo has made of it
        lock = tomllib.loads((peer / "Cargo.lock").read_text(encoding="utf-8"))
        needed = {each["name"] for each in lock["package"]} - {manifest["package"]["name"]}
        assert needed - {each.get("package", name) for name, each in tables.items()} == set()


def test_nothing_says_where_packages_come_from_or_which_machine_this_is() -> None:
    files = [ROOT / ".ci" / "run", ROOT / "Makefile", ROOT / "pyproject.toml", *(ROOT / "requirements").iterdir()]
    files += [ROOT / "tests" / "interop_peer" / "Cargo.toml"]
    stray = re.compile(r"index-url|find-links [^-\s]|trusted-host|https?://|registry\+|/(root|home|work)/|\$\{HOME:-/")
    assert [path for path in files if stray.search(path.read_text(encoding="utf-8"))] == []


def test_the_command_begins_where_that_is_said() -> None:
    assert PROJECT["scripts"] == {"conclave": "conclave.__main__:main"}
