"""The routes of the operators' page: the page itself, its style, and the script that renews it."""

from collections.abc import AsyncIterator
from importlib import resources

from aiohttp import web

from conclave import keys
from conclave.admin.page import view
from conclave.admin.page.looking import Looking
from conclave.admin.page.rate import SendRate
from conclave.admin.page.view import Sources
from conclave.admin.sizes import Sizes
from conclave.wire.ready import HEADERS

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
"""The page runs only what this listener serves, asks only it, and stands in no other page."""

SECURED = {
    **HEADERS,
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "same-origin",  # "no-referrer" would take the Origin from the page's own forms
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

FILES = {"page.css": "text/css", "page.js": "text/javascript"}


class Page:
    """The operators' page of one server."""

    def __init__(self, served: web.Application, sizes: Sizes) -> None:
        """``served``: the clients' application. ``sizes``: measures its files."""
        self.looking = Looking(served)
        self._sources = Sources(served, self.looking, sizes, SendRate(served[keys.REQUESTS]))
        self._environment = view.environment()
        folder = resources.files("conclave.admin.page").joinpath("static")
        self._files = {name: folder.joinpath(name).read_text(encoding="utf-8") for name in FILES}

    def add_routes(self, app: web.Application) -> None:
        """Add the page to the operators' application."""
        app[PAGE] = self
        app.router.add_get("/", self.show)
        for name in FILES:
            app.router.add_get(f"/{name}", self.give)
        app.cleanup_ctx.append(self._working)

    async def _working(self, _: web.Application) -> AsyncIterator[None]:
        self._sources.rate.begin()
        yield
        self._sources.rate.end()
        await self.looking.close()

    async def show(self, _: web.Request) -> web.Response:
        """GET /: the page."""
        await self.looking.refresh()
        await self._sources.sizes.refresh()
        return self._answer("page.html.j2", **view.told(self._sources))

    async def give(self, request: web.Request) -> web.Response:
        """GET /page.css and /page.js."""
        name = request.path.removeprefix("/")
        return web.Response(text=self._files[name], content_type=FILES[name], charset="utf-8", headers=SECURED)

    def _answer(self, template: str, status: int = 200, **values: object) -> web.Response:
        text = self._environment.get_template(template).render(values)
        return web.Response(text=text, status=status, content_type="text/html", charset="utf-8", headers=SECURED)


PAGE = web.AppKey("page", Page)
