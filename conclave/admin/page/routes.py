"""The routes of the operators' page: the page, its style and script, and its actions."""

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import AsyncIterator, Coroutine
from functools import cached_property
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aiohttp import web

from conclave import app_keys
from conclave.admin.page import view
from conclave.admin.page.actions import PageActions
from conclave.admin.page.snapshot import SAMPLE_SECONDS, PageSnapshot, SendRate
from conclave.admin.page.view import Sources
from conclave.admin.sizes import Sizes
from conclave.errors import ApiError, BadRequestError, ForbiddenError, UnavailableError
from conclave.health import background
from conclave.health.parts import HealthPart
from conclave.store.engine.faults import StoreError
from conclave.wire.response_head import HEADERS

if TYPE_CHECKING:
    from jinja2 import Environment

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
"""Only resources of this listener may be loaded or requested, and no page may embed this one."""

PAGE_HEADERS = {
    **HEADERS,
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "same-origin",  # "no-referrer" would remove the Origin header from the page's own forms
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

TOKEN_SECONDS = 12 * 3600.0
"""A form is valid for 12 hours."""

MAX_REMEMBERED = 100_000
"""The maximum number of used tokens in memory, about 20 MB."""

FILES = {"page.css": "text/css", "page.js": "text/javascript"}


class FormTokenError(Exception):
    """A form is rejected. The message says why, and what to do."""


class FormTokens:
    """Makes and redeems the form tokens of one process, against cross-site request forgery (CSRF).

    Other web pages cannot read a token, so they cannot forge a form. If a form is sent twice, the second one is
    rejected.
    """

    def __init__(self) -> None:
        """Generate a new secret, so that a restart invalidates all tokens."""
        self._secret = secrets.token_bytes(32)
        self._used: dict[str, float] = {}

    def make(self) -> str:
        """Return a new token for one form."""
        body = f"{int(time.monotonic())}.{secrets.token_urlsafe(16)}"
        return f"{body}.{self._sign(body)}"

    def redeem(self, token: str) -> None:
        """Redeem a token, which becomes invalid. Raises FormTokenError."""
        body, _, signature = token.rpartition(".")
        if not hmac.compare_digest(self._sign(body).encode(), signature.encode("utf-8", "replace")):
            raise FormTokenError("this form is not of this server, or older than its last start: reload the page")
        now = time.monotonic()
        if now > int(body.partition(".")[0]) + TOKEN_SECONDS:
            raise FormTokenError("this form is too old: reload the page")
        if body in self._used:
            raise FormTokenError("this form was already sent, and acts only once: reload the page to see the result")
        self._used[body] = now
        while (oldest := next(iter(self._used))) != body and self._can_forget(oldest, now):
            del self._used[oldest]

    def _can_forget(self, oldest: str, now: float) -> bool:
        return now > self._used[oldest] + TOKEN_SECONDS or len(self._used) > MAX_REMEMBERED

    def _sign(self, body: str) -> str:
        return hmac.new(self._secret, body.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


class OperatorPage:
    """The operators' page of one server."""

    def __init__(self, client_app: web.Application, sizes: Sizes, actions: PageActions) -> None:
        """``client_app``: the clients' application. ``sizes``: measures files. ``actions``: the actions of forms."""
        self.snapshot = PageSnapshot(client_app)
        self._sources = Sources(client_app, self.snapshot, sizes, SendRate(client_app[app_keys.REQUESTS]))
        self._actions = actions
        self._form_tokens = FormTokens()
        self._allows_actions = client_app[app_keys.CONFIG].admin.allow_actions
        folder = resources.files("conclave.admin.page").joinpath("static")
        self._files = {name: folder.joinpath(name).read_text(encoding="utf-8") for name in FILES}

    @cached_property
    def _environment(self) -> "Environment":
        environment = view.environment()
        environment.globals["ticket"] = self._form_tokens.make
        return environment

    def add_routes(self, app: web.Application) -> None:
        """Add the page to the operators' application."""
        app[PAGE] = self
        app.router.add_get("/", self.show)
        for name in FILES:
            app.router.add_get(f"/{name}", self.serve_file)
        app.router.add_post("/dry-run", self.count)
        app.router.add_post("/actions/{action}", self.act)
        app.cleanup_ctx.append(self._run_background)

    async def _run_background(self, app: web.Application) -> AsyncIterator[None]:
        rate = self._sources.rate
        await rate.sample()
        async with background.every(app[app_keys.HEALTH], HealthPart.SEND_RATE, SAMPLE_SECONDS, rate.sample):
            yield
        await self.snapshot.close()

    async def show(self, _: web.Request) -> web.Response:
        """GET /: the page."""
        await asyncio.gather(self.snapshot.refresh(), self._sources.sizes.refresh())
        return self._answer("page.html.j2", **view.template_values(self._sources), allows_actions=self._allows_actions)

    async def serve_file(self, request: web.Request) -> web.Response:
        """GET /page.css and /page.js."""
        name = request.path.removeprefix("/")
        return web.Response(text=self._files[name], content_type=FILES[name], charset="utf-8", headers=PAGE_HEADERS)

    async def count(self, request: web.Request) -> web.Response:
        """POST /dry-run: count the messages that a run would delete now, without changes."""

        async def render_report() -> web.Response:
            await self._form(request)
            return self._answer("counted.html.j2", report=await self._actions.count())

        return await self._with_error_page(render_report())

    async def act(self, request: web.Request) -> web.Response:
        """POST /actions/NAME: perform an action, if the settings allow it."""

        async def perform() -> web.Response:
            if not self._allows_actions:
                raise ForbiddenError("actions are disabled: [admin] allow_actions is false")
            action = self._actions.forms.get(request.match_info["action"])
            if action is None:
                raise BadRequestError("unknown action")
            sentence = await action(f"operator page at {request.remote}", await self._form(request))
            self.snapshot.expire()
            return self._answer("outcome.html.j2", title="Done", sentence=sentence, is_good=True)

        return await self._with_error_page(perform())

    async def _form(self, request: web.Request) -> dict[str, str]:
        """Return the fields of a form of this page. Raises ForbiddenError or BadRequestError."""
        _require_same_origin(request)
        self._actions.require_serving()
        if request.content_type != "application/x-www-form-urlencoded" or not _is_utf8(request.charset):
            raise BadRequestError("this is not a form of this page")
        try:
            form = {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
        except (ValueError, LookupError) as error:
            raise BadRequestError("this form cannot be read") from error
        try:
            self._form_tokens.redeem(form.get("ticket", ""))
        except FormTokenError as error:
            raise ForbiddenError(str(error)) from error
        return form

    async def _with_error_page(self, response: Coroutine[Any, Any, web.Response]) -> web.Response:
        """Return ``response``, or a page with its error."""
        try:
            return await response
        except (ApiError, StoreError) as error:
            api_error = error if isinstance(error, ApiError) else UnavailableError(str(error), seconds=1)
            values = {"title": "Nothing was done", "sentence": api_error.message, "is_good": False}
            return self._answer("outcome.html.j2", api_error.status, **values)

    def _answer(self, template: str, status: int = 200, **values: object) -> web.Response:
        text = self._environment.get_template(template).render(values)
        return web.Response(text=text, status=status, content_type="text/html", charset="utf-8", headers=PAGE_HEADERS)


def _require_same_origin(request: web.Request) -> None:
    """Raise ForbiddenError if the form was sent from another site, according to the browser's headers."""
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "same-origin")
    if origin is not None and _host_of(origin) != request.headers.get("Host", "").lower():
        raise ForbiddenError(
            "this form comes from another page; behind a reverse proxy, make it pass on the browser's Host header"
        )
    if site != "same-origin":
        raise ForbiddenError("this form comes from another page")


def _host_of(origin: str) -> str | None:
    """Return the host and port of an Origin; None if malformed."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _is_utf8(charset: str | None) -> bool:
    """Return whether ``charset`` is UTF-8 or absent: browsers use the page's own."""
    return charset is None or charset.lower() == "utf-8"


PAGE = web.AppKey("page", OperatorPage)
