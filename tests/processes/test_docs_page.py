"""The docs page in a real browser."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import PATIENCE, ServerProcess

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # nothing but the server can be reached
    "--virtual-time-budget=10000",  # waits until the page is at rest, not for that long
    "--enable-logging=stderr",
)


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed (Debian: apt install chromium)")
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), '[cleanup]\nengine = "sql"\n') as started:
        yield started


def asked_for(log: Path) -> Iterator[str]:
    """Yield what the page itself asked for: the browser's own errands have no page for their origin."""
    recorded: dict[str, Any] = json.loads(log.read_text())
    kind = recorded["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    for event in recorded["events"]:
        about = event.get("params", {})
        if event["type"] == kind and about.get("initiator", "").startswith("http"):
            yield about["url"]


def test_the_page_shows_the_endpoints_and_asks_nobody_else(browser: str, server: ServerProcess, tmp_path: Path) -> None:
    page = f"{server.url}/api/v1/docs#/groups/groups_create"
    files = (f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={tmp_path / 'net.json'}")
    shown = subprocess.run(
        [browser, *FLAGS, *files, "--dump-dom", page], capture_output=True, text=True, timeout=PATIENCE
    )
    assert shown.returncode == 0, shown.stderr
    for path in ("/api/v1/register", "/api/v1/groups/{group_id}/messages", "/healthz"):
        assert f'data-path="{path}"' in shown.stdout
    assert "book_club" in shown.stdout, "the operation that the address names is open, with its example"
    assert "Content Security Policy" not in shown.stderr
    urls = list(asked_for(tmp_path / "net.json"))
    assert f"{server.url}/api/v1/openapi.json" in urls
    assert all(url.startswith(f"{server.url}/") for url in urls), urls
