"""How the server serves the browser chat: files, headers, caching."""

import gzip
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from conclave.config.settings import Config
from conclave.config.web import WebConfig
from conclave.web import files
from tests.conftest import Running, StartServer

SCRIPT = "console.log('hello');\n" * 10_000
LARGE, SMALL = "page-0123456789abcdef.js", "page-fedcba9876543210.css"
PAGE = '<!DOCTYPE html><meta name="auth-header" content="Authorization"><title>Conclave</title>'
ROOT = {"index.html": PAGE, "service-worker.js": "self;", "manifest.webmanifest": "{}"}
HASHED = {LARGE: SCRIPT, SMALL: "body { margin: 0 }"}


@pytest.fixture(autouse=True)
def static(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like that of a build."""
    folder = tmp_path / "static"
    folder.mkdir()
    for name, text in {**ROOT, **HASHED, "notes.md": "for nobody"}.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(files, "STATIC", folder)
    return folder


@pytest.fixture
async def crossing(config: Config, start_server: StartServer) -> AsyncIterator[Running]:
    allowed = replace(config, web=WebConfig(allowed_origins=("https://chat.example.org",)))
    async with start_server(allowed) as running:
        yield running


FILES = {
    "/": "text/html",
    "/service-worker.js": "text/javascript",
    "/manifest.webmanifest": "application/manifest+json",
    f"/{LARGE}": "text/javascript",
    f"/{SMALL}": "text/css",
}


@pytest.mark.parametrize("path", FILES)
async def test_each_file_has_the_security_headers_and_its_media_type(running: Running, path: str) -> None:
    async with running.http.get(f"{running.url}{path}") as response:
        assert (response.status, response.content_type) == (200, FILES[path])
        policy = response.headers["Content-Security-Policy"]
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Referrer-Policy"] == "no-referrer"
        assert response.headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert await response.read()
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert not {"unsafe", "http", "*", "data:", "blob:"} & {*policy.replace("-", " ").split()}
    assert "require-trusted-types-for 'script'" in policy


@pytest.mark.parametrize("path", FILES)
async def test_hashed_files_are_cached_forever_and_others_are_revalidated(running: Running, path: str) -> None:
    async with running.http.get(f"{running.url}{path}") as response:
        kept = response.headers["Cache-Control"]
        tag = response.headers["ETag"]
    assert kept == ("public, max-age=31536000, immutable" if path[1:] in HASHED else "no-cache")
    async with running.http.get(f"{running.url}{path}", headers={"If-None-Match": tag}) as response:
        assert (response.status, await response.read()) == (304, b"")
        assert response.headers["Cache-Control"] == kept
    async with running.http.get(f"{running.url}{path}", headers={"If-None-Match": '"other"'}) as response:
        assert response.status == 200


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("*", True), ("gzip;q=0", False), ("br", False), ("", False)],
)
async def test_a_large_file_is_compressed_for_clients_that_accept_it(
    running: Running, accepted: str, *, is_compressed: bool
) -> None:
    url = f"{running.url}/{LARGE}"
    async with running.http.get(url, headers={"Accept-Encoding": accepted}, auto_decompress=False) as response:
        body = await response.read()
        assert response.headers.get("Content-Encoding") == ("gzip" if is_compressed else None)
        assert response.headers["Vary"] == "Accept-Encoding"
        assert int(response.headers["Content-Length"]) == len(body)
    assert (gzip.decompress(body) if is_compressed else body) == SCRIPT.encode()


async def test_a_small_file_is_never_compressed(running: Running) -> None:
    async with running.http.get(f"{running.url}/{SMALL}") as response:
        assert "Content-Encoding" not in response.headers


async def test_head_has_the_same_headers_without_the_file(running: Running) -> None:
    async with running.http.get(f"{running.url}/{LARGE}") as response:
        expected = {name: response.headers[name] for name in ("Content-Length", "ETag", "Content-Type")}
    async with running.http.head(f"{running.url}/{LARGE}") as response:
        assert (response.status, await response.read()) == (200, b"")
        assert {name: response.headers[name] for name in expected} == expected


@pytest.mark.parametrize(
    "path", ["/notes.md", "/index.html", "/..%2ffiles.py", "/%2fetc%2fpasswd", "//etc/passwd", "/nothing"]
)
async def test_other_paths_are_not_found(running: Running, path: str) -> None:
    async with running.http.get(f"{running.url}{path}") as response:
        assert response.status == 404
        assert (await response.json())["error_code"] == 300


async def test_another_method_is_rejected_with_the_allowed_ones(running: Running) -> None:
    async with running.http.post(f"{running.url}/") as response:
        assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")


async def test_it_can_be_disabled(config: Config, start_server: StartServer) -> None:
    async with start_server(replace(config, web=WebConfig(enabled=False))) as running:
        for path in FILES:
            async with running.http.get(f"{running.url}{path}") as response:
                assert response.status == 404


async def test_the_page_contains_the_configured_auth_header(config: Config, start_server: StartServer) -> None:
    async with (
        start_server(replace(config, auth_header="X-Token")) as running,
        running.http.get(running.url) as response,
    ):
        assert '<meta name="auth-header" content="X-Token">' in await response.text()


async def test_the_page_contains_authorization_as_its_script_expects_it(
    config: Config, start_server: StartServer
) -> None:
    async with (
        start_server(replace(config, auth_header="authorization")) as running,
        running.http.get(running.url) as response,
    ):
        assert '<meta name="auth-header" content="Authorization">' in await response.text()


async def test_caches_distinguish_encoding_and_origin(crossing: Running) -> None:
    async with crossing.http.get(f"{crossing.url}/", headers={"Origin": "https://chat.example.org"}) as response:
        assert response.headers["Access-Control-Allow-Origin"] == "https://chat.example.org"
        assert response.headers["Vary"] == "Origin, Accept-Encoding"
