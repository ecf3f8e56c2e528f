"""The routes of the browser chat. They are not in the route table, since they are for browsers only."""

from functools import partial
from pathlib import Path

from aiohttp import ETag, web

from conclave import app_keys
from conclave.web import files
from conclave.wire.shared import matches_etag, reply_shared


def add_routes(router: web.UrlDispatcher, folder: Path) -> None:
    """Add a route for each file in ``folder``."""
    for name in files.file_names(folder):
        router.add_get("/" if name == files.PAGE else f"/{name}", partial(_answer, folder / name))


async def _answer(path: Path, request: web.Request) -> web.StreamResponse:
    """Answer with a file."""
    file = files.load(path, request.app[app_keys.CONFIG].auth_header)
    gzipped = file.gzipped if files.takes_gzip(request.headers.get("Accept-Encoding", "")) else None
    if matches_etag(request, file.tag):
        response: web.StreamResponse = web.Response(status=304)
    else:
        response = reply_shared(request, gzipped or file.plain, file.media_type)
        if gzipped:
            response.headers["Content-Encoding"] = "gzip"
    response.headers.update(files.headers(path.name))
    response.etag = ETag(file.tag, is_weak=True)  # the same for both encodings
    return response
