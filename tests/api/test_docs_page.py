"""The page that shows the document, and what it loads: all of it from this server."""

import re

import pytest

from conclave.server.routes import API
from tests.conftest import Running


async def test_the_page_loads_only_what_this_server_has(running: Running) -> None:
    async with running.http.get(f"{running.url}{API}/docs") as response:
        page, policy = await response.text(), response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert not re.search(r"<script>|<style|style=| on\w+=", page), "the policy would forbid it"
    assets = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(assets) == 4
    for asset in assets:
        async with running.http.get(f"{running.url}{API}/{asset}") as response:
            assert response.status == 200
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert await response.read()


async def test_the_page_asks_nobody_else_to_validate_the_document(running: Running) -> None:
    async with running.http.get(f"{running.url}{API}/docs/page.js") as response:
        assert response.content_type == "text/javascript"
        script = await response.text()
    assert 'url: "openapi.json"' in script
    assert "validatorUrl: null" in script


async def test_a_browser_keeps_what_the_page_loads_and_asks_if_it_has_changed(running: Running) -> None:
    url = f"{running.url}{API}/docs/swagger-ui.css"
    async with running.http.get(url) as response:
        assert (response.content_type, response.headers["Cache-Control"]) == ("text/css", "no-cache")
        tag = response.headers["ETag"]
    async with running.http.get(url, headers={"If-None-Match": tag}) as response:
        assert response.status == 304


@pytest.mark.parametrize("name", ["VERSION", "..%2Fflask_swagger_ui.py", "%2Fetc%2Fpasswd", "nothing", ""])
async def test_nothing_else_is_there(running: Running, name: str) -> None:
    async with running.http.get(f"{running.url}{API}/docs/{name}") as response:
        assert response.status == 404
        assert (await response.json())["error_code"] == 300
