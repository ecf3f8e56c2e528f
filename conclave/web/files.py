"""The files of the chat for browsers, in memory as they are sent."""

import gzip
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from conclave.wire.shared import split_body

STATIC = Path(__file__).with_name("static")
"""What ``make web`` has built."""

PAGE = "index.html"

_HASHED = re.compile(r"-[0-9a-f]{16}\.\w+")
"""How names end that have a part of the file's hash."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; worker-src 'self'; "
    "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types conclave"  # the policy by which the page names its own workers
)

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
}
"""On every file: a worker has the policy that its own script came with."""

IMMUTABLE = "public, max-age=31536000, immutable"
"""A file whose name has its hash is never another one."""

REVALIDATE = "no-cache"
"""Browsers keep the page, and ask each time whether it has changed."""

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
"""How the page learns in which header the server wants the token."""


class File(NamedTuple):
    """A file. ``gzipped``: by gzip; None where that saves nothing. ``tag``: its ETag, of either form."""

    media_type: str
    tag: str
    plain: Sequence[bytes]
    gzipped: Sequence[bytes] | None


def file_names(folder: Path) -> list[str]:
    """Return the names of the files in ``folder`` that can be served."""
    return sorted(each.name for each in folder.iterdir() if each.suffix in _MEDIA_TYPES)


@cache
def load(path: Path, auth_header: str) -> File:
    """Read a file and pack it, once for all: that takes some 20 ms. ``auth_header``: the setting, for the page."""
    body = path.read_bytes()
    if path.name == PAGE:
        default, configured = (_AUTH_META.format(each).encode("ascii") for each in ("Authorization", auth_header))
        body = body.replace(default, configured)
    gzipped = gzip.compress(body, mtime=0)
    tag = hashlib.sha256(body).hexdigest()
    return File(
        _MEDIA_TYPES[path.suffix], tag, split_body(body), split_body(gzipped) if len(gzipped) < len(body) else None
    )


def takes_gzip(accept_encoding: str) -> bool:
    """Tell whether a client takes gzip. ``accept_encoding``: the request's header, "" if it has none."""
    for each in accept_encoding.lower().split(","):
        coding, _, weight = each.partition(";")
        if coding.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def headers(name: str) -> Mapping[str, str]:
    """Return the headers of a file."""
    return {**HEADERS, "Cache-Control": IMMUTABLE if _HASHED.search(name) else REVALIDATE}
