"""The description of the protocol, for programs and for people."""

from importlib.util import find_spec
from pathlib import Path

from aiohttp import web

from conclave import keys
from conclave.errors import NotFoundError
from conclave.wire.exchange import read_query
from conclave.wire.handover import SHARE
from conclave.wire.negotiate import Format
from conclave.wire.openapi import document as openapi
from conclave.wire.schemas.docs import Describe

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Conclave</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="icon" href="docs/favicon-32x32.png">
</head>
<body>
<div id="page"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/page.js"></script>
</body>
</html>
"""

_SCRIPT = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#page",
  deepLinking: true,
  validatorUrl: null,
});
"""
"""Without validatorUrl the page would send the document's address to a service elsewhere."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; "  # the library's icons are in its styles
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_LIBRARY = ("swagger-ui.css", "swagger-ui-bundle.js", "favicon-32x32.png")


async def document(request: web.Request) -> web.Response:
    """GET /openapi.json: This document."""
    app, wanted = request.app, read_query(request, Describe)
    formats = (Format.JSON,) if wanted.format else tuple(Format)
    endpoints = tuple(app[keys.ENDPOINTS].values())
    body = openapi.written(endpoints, app[keys.IN_FORCE].config.auth_header, formats)
    await request[SHARE].reserve(len(body))
    return web.Response(body=body, content_type="application/json")


async def page(_: web.Request) -> web.Response:
    """GET /docs: This document as a page."""
    return web.Response(text=_PAGE, content_type="text/html", headers={"Content-Security-Policy": _POLICY})


async def asset(request: web.Request) -> web.StreamResponse:
    """Answer with a file that the docs page loads. Raises NotFoundError.

    It is no endpoint, since it is for the page only. Browsers keep the file, and ask whether it has changed.
    """
    name = request.match_info["name"]
    headers = {"Cache-Control": "no-cache"}
    if name == "page.js":
        return web.Response(text=_SCRIPT, content_type="text/javascript", headers=headers)
    if name not in _LIBRARY:
        raise NotFoundError("no such path")
    return web.FileResponse(_library() / name, headers=headers)


def _library() -> Path:
    """Return the folder of the library's files. To import its package would also import Flask."""
    found = find_spec("flask_swagger_ui")
    assert found  # noqa: S101 - a dependency
    assert found.origin  # noqa: S101 - a package with a file
    return Path(found.origin).with_name("dist")
