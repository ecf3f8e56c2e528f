"""The chat for browsers: its page and what that loads. They are no endpoints, since they are for browsers only."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from aiohttp import ETag, web

from conclave import app_keys
from conclave.errors import NotFoundError
from conclave.web import files
from conclave.wire.shared import is_kept, reply_shared


def add_routes(router: web.UrlDispatcher, folder: Path) -> None:
    """Serve what lies in ``folder``."""
    for name in files.names(folder):
        router.add_get("/" if name == files.PAGE else f"/{name}", partial(_answer, folder / name))
    assets = folder / files.ASSETS
    router.add_get(f"/{files.ASSETS}/{{name}}", partial(_asset, {each: assets / each for each in files.names(assets)}))


async def _asset(assets: Mapping[str, Path], request: web.Request) -> web.StreamResponse:
    """Answer with one of ``assets``. Raises NotFoundError."""
    path = assets.get(request.match_info["name"])
    if not path:
        raise NotFoundError("no such path")
    return await _answer(path, request, for_good=True)


async def _answer(path: Path, request: web.Request, *, for_good: bool = False) -> web.StreamResponse:
    """Answer with a file. ``for_good``: see ``files.headers``."""
    file = files.load(path, request.app[app_keys.CONFIG].auth_header)
    packed = file.packed if files.takes_gzip(request.headers.get("Accept-Encoding", "")) else None
    if is_kept(request, file.tag):
        response: web.StreamResponse = web.Response(status=304)
    else:
        response = reply_shared(request, packed or file.plain, file.media_type)
        if packed:
            response.headers["Content-Encoding"] = "gzip"
    response.headers.update(files.headers(for_good=for_good))
    response.etag = ETag(file.tag, is_weak=True)  # of both forms
    return response
