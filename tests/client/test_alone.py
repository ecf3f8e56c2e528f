"""The library and the chat run with nothing installed but what pyproject.toml names for them."""

import contextlib
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

OF_THE_SERVER = {
    *("pyspark", "pyarrow", "deltalake", "aiosqlite", "argon2-cffi", "uvloop", "httptools", "structlog", "jinja2"),
}

REFUSING = """
import sys
allowed = set({allowed!r})
class Only:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        known = top in allowed or top in sys.stdlib_module_names
        return self.finder.find_spec(name, path, target) if known else None
sys.meta_path[:] = [Only(each) for each in sys.meta_path]
import {modules}
theirs = ["store", "server", "archive", "config", "actions", "api", "cache"]
print([name for name in sys.modules if name.startswith("conclave.") and name.split(".")[1] in theirs])
"""


def closure(needed: list[str]) -> set[str]:
    """Return the distributions that these need, and all that those need, as far as they are installed here."""
    found: set[str] = set()
    waiting = [*needed]
    while waiting:
        name = re.split(r"[\s\[<>=!~;(]", waiting.pop())[0].lower().replace("_", "-")
        with contextlib.suppress(PackageNotFoundError):
            more = [] if name in found else requires(name) or []
            found.add(name)
            waiting += [each for each in more if "extra ==" not in each]
    return found


@pytest.mark.parametrize(
    ("extras", "modules", "without"),
    [
        (
            *([], "conclave.client, conclave.client.session, conclave.client.membership, conclave.client.mls"),
            {"textual", "rich", "click", *OF_THE_SERVER},
        ),
        (["client"], "conclave.cli.main, conclave.cli.chat", OF_THE_SERVER),
    ],
    ids=["library", "chat"],
)
def test_they_import_only_what_their_requirements_bring(extras: list[str], modules: str, without: set[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    of_extras = [each for extra in extras for each in project["optional-dependencies"][extra]]
    names = closure(project["dependencies"] + of_extras)
    assert not names & without
    allowed = {
        module
        for module, brought_by in packages_distributions().items()
        if any(each.lower().replace("_", "-") in names for each in brought_by)
    }
    program = REFUSING.format(allowed=sorted({*allowed, "conclave"}), modules=modules)
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
