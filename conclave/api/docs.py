"""The OpenAPI document, and a page that shows it."""

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from aiohttp import ETag, web

from conclave import app_keys
from conclave.errors import NotFoundError
from conclave.wire.exchange import Endpoint, read_query
from conclave.wire.formats import Format
from conclave.wire.openapi import document as openapi
from conclave.wire.schemas.docs import Describe
from conclave.wire.shared import matches_etag, reply_shared, split_body

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
"""Without validatorUrl the page would send the document's address to an external service."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; "  # icons in the library's styles
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_LIBRARY = {
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
    "favicon-32x32.png": "image/png",
}
"""The files of the library that the page loads, and their media types."""


async def document(request: web.Request) -> web.StreamResponse:
    """GET /openapi.json: This document."""
    app, query = request.app, read_query(request, Describe)
    formats = (Format.JSON,) if query.format else tuple(Format)
    endpoints = tuple(app[app_keys.ENDPOINTS].values())
    pieces = _document(endpoints, app[app_keys.CONFIG].auth_header, formats)
    return reply_shared(request, pieces, "application/json")


async def page(_: web.Request) -> web.Response:
    """GET /docs: This document as a page."""
    return web.Response(text=_PAGE, content_type="text/html", headers={"Content-Security-Policy": _POLICY})


class _Asset(NamedTuple):
    pieces: Sequence[bytes]
    tag: ETag


async def asset(request: web.Request) -> web.StreamResponse:
    """Answer with a file that the docs page loads. Raises NotFoundError.

    It is not in the route table, since only the page uses it. Browsers cache the file and revalidate it.
    """
    name = request.match_info["name"]
    headers = {"Cache-Control": "no-cache"}
    if name == "page.js":
        return web.Response(text=_SCRIPT, content_type="text/javascript", headers=headers)
    if name not in _LIBRARY:
        raise NotFoundError("no such path")
    file = _read(name)
    is_current = matches_etag(request, file.tag.value)
    response = web.Response(status=304) if is_current else reply_shared(request, file.pieces, _LIBRARY[name])
    response.headers.update(headers)
    response.etag = file.tag
    return response


@cache
def _read(name: str) -> _Asset:
    """Read a file of the library. Cached, since that takes a few milliseconds."""
    body = (_library() / name).read_bytes()
    return _Asset(split_body(body), ETag(hashlib.sha256(body).hexdigest()))


@cache
def _document(endpoints: tuple[Endpoint, ...], auth_header: str, formats: tuple[Format, ...]) -> Sequence[bytes]:
    """Write the document. Cached."""
    return split_body(openapi.document_json(endpoints, auth_header, formats))


def _library() -> Path:
    """Return the folder of the library's files, without importing its package and Flask."""
    spec = find_spec("flask_swagger_ui")
    assert spec  # noqa: S101 - a dependency
    assert spec.origin  # noqa: S101 - a package with a file
    return Path(spec.origin).with_name("dist")
