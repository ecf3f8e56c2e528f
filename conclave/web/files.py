"""Serves the files of the browser chat, which are in memory."""

import gzip
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from aiohttp import ETag, web

from conclave import app_keys
from conclave.wire.shared import matches_etag, reply_shared, split_body

STATIC = Path(__file__).with_name("static")
"""The output of ``make web``."""

PAGE = "index.html"

_HASHED = re.compile(r"-[0-9a-f]{16}\.\w+")
"""The end of file names with a hash of the content."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; worker-src 'self'; "
    "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types conclave"  # used for the URLs of its workers
)

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
}
"""The headers of all files. Workers use the policy of their own script."""

IMMUTABLE = "public, max-age=31536000, immutable"
"""For files with their hash in the name: their content never changes."""

REVALIDATE = "no-cache"
"""For all other files: browsers cache and revalidate them."""

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
}

_AUTH_META = '<meta name="auth-header" content="{}">'
"""The element from which the page reads the name of the token's header."""


class File(NamedTuple):
    """A file. ``gzipped``: None if gzip does not make it smaller. ``tag``: its ETag."""

    media_type: str
    tag: str
    plain: Sequence[bytes]
    gzipped: Sequence[bytes] | None


def file_names(folder: Path) -> list[str]:
    """Return the names of the files to serve in ``folder``."""
    return sorted(each.name for each in folder.iterdir() if each.suffix in _MEDIA_TYPES)


@cache
def load(path: Path, auth_header: str) -> File:
    """Read and compress a file. Cached, since that takes about 20 ms. ``auth_header``: the setting, for the page."""
    body = path.read_bytes()
    if path.name == PAGE:
        default, configured = (_AUTH_META.format(each).encode("ascii") for each in ("Authorization", auth_header))
        body = body.replace(default, configured)
    compressed = gzip.compress(body, mtime=0)
    tag = hashlib.sha256(body).hexdigest()
    return File(
        _MEDIA_TYPES[path.suffix],
        tag,
        split_body(body),
        split_body(compressed) if len(compressed) < len(body) else None,
    )


def takes_gzip(accept_encoding: str) -> bool:
    """Return whether a client accepts gzip. ``accept_encoding``: the request's header, "" if absent."""
    for each in accept_encoding.lower().split(","):
        coding, _, weight = each.partition(";")
        if coding.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def headers(name: str) -> Mapping[str, str]:
    """Return the headers of a file."""
    return {**HEADERS, "Cache-Control": IMMUTABLE if _HASHED.search(name) else REVALIDATE}


def add_routes(router: web.UrlDispatcher, folder: Path) -> None:
    """Add a route for each file in ``folder``."""
    for name in file_names(folder):
        router.add_get("/" if name == PAGE else f"/{name}", partial(_answer, folder / name))


async def _answer(path: Path, request: web.Request) -> web.StreamResponse:
    """Answer with a file."""
    file = load(path, request.app[app_keys.CONFIG].auth_header)
    gzipped = file.gzipped if takes_gzip(request.headers.get("Accept-Encoding", "")) else None
    if matches_etag(request, file.tag):
        response: web.StreamResponse = web.Response(status=304)
    else:
        response = reply_shared(request, gzipped or file.plain, file.media_type)
        if gzipped:
            response.headers["Content-Encoding"] = "gzip"
    response.headers.update(headers(path.name))
    response.etag = ETag(file.tag, is_weak=True)  # the same for both encodings
    return response
