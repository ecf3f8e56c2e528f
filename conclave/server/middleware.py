"""What happens around every request: its id, its log line, the mapping of errors, authentication."""

import random
import time
from functools import partial

import structlog
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from conclave import app_keys
from conclave.auth import tokens
from conclave.errors import (
    ApiError,
    BadRequestError,
    BodyTooLargeError,
    MethodNotAllowedError,
    NotFoundError,
    StorageFullError,
    UnavailableError,
)
from conclave.logs.setup import get_logger, log_request
from conclave.measures import CLIENT_CLOSED
from conclave.store.engine.faults import StoreError, StoreFullError
from conclave.wire import response_head
from conclave.wire.exchange import (
    BODY_PENDING,
    ENDPOINT,
    RECHECK_SESSION,
    Endpoint,
    RecheckSession,
    choose_format,
    reply_error,
)
from conclave.wire.handover import ACCOUNT, BUDGET, StreamedResponse, hand_over
from conclave.wire.response_head import REQUEST_ID, response_headers

log = get_logger(__name__)

RETRY_SECONDS = 5
"""Clients may ask again 5 seconds after the store failed. An operator may have mended it by then."""

AIOHTTP_MAX_BYTES = 64 * 1024
"""A response of at most 64 KiB is left to aiohttp, unless something waits before it."""

_chance = random.Random()  # noqa: S311 - ids of requests tell them apart, and open nothing


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Set the headers that every response has, where a response was made without them: those of files, for one."""
    cache_control = response.headers.get("Cache-Control")
    response.headers.update(response_headers(request))
    if cache_control:
        response.headers["Cache-Control"] = cache_control


class RequestPipeline:
    """What happens around every request, on whichever way it comes to its handler."""

    def __init__(self, app: web.Application) -> None:
        """``app``: its resources are there."""
        self._auth_header = app[app_keys.CONFIG].auth_header
        self._budget = app[app_keys.BUDGET]
        self._freshness = app[app_keys.FRESHNESS]
        self._sessions = app[app_keys.SESSIONS]
        self._activity = app[app_keys.ACTIVITY]
        self._requests = app[app_keys.REQUESTS]

    async def handle(
        self, request: web.Request, route: str, endpoint: Endpoint | None, handler: Handler
    ) -> web.StreamResponse:
        """Give the request an id and a format; find out who is calling.

        Every error is answered as an error response. Responses that may wait are sent here: large ones, and any
        to a client that has not taken the one before yet. The log gets ``route``, not the path: names and ids are
        private. ``endpoint``: None where there is none.
        """
        began = time.monotonic()
        request[REQUEST_ID] = request_id = new_request_id()
        structlog.contextvars.bind_contextvars(request_id=request_id)  # the request has a task, and so a context
        if endpoint:
            request[ENDPOINT] = endpoint
        request[tokens.TOKEN] = token = tokens.parse_token(request.headers.get(self._auth_header), self._auth_header)
        choose_format(request, token)
        request[BUDGET] = self._budget
        try:
            if endpoint and not endpoint.public:
                token_hash = tokens.token_hash(tokens.require_token(request))
                again: RecheckSession = partial(
                    self._caller, token_hash
                )  # without the request, or it would be a circle
                request[RECHECK_SESSION], request[BODY_PENDING] = again, not request.content.is_eof()
                request[tokens.CALLER] = caller = await self._caller(token_hash)
                request[ACCOUNT] = caller.user_id
            response = await handler(request)
            if _may_wait(request, response) and not response.prepared:
                await hand_over(request, response, counts=False)
        except ConnectionError:
            self._requests.note(request.method, route, CLIENT_CLOSED, time.monotonic() - began)
            log.info("client_gone", method=request.method, route=route)
            raise
        except Exception as error:  # noqa: BLE001 - after any error the client gets an answer
            response = reply_error(request, self.as_api_error(error, request.method, route))
        self.note_answered(request.method, route, response.status, began, request_id)
        return response

    def as_api_error(self, error: Exception, method: str, route: str) -> ApiError:
        """Return what a client is told of an error that is being handled. An unforeseen one is logged."""
        if isinstance(error, ApiError | StoreError | web.HTTPException):
            return _as_api_error(error)
        log.error("request_failed", method=method, route=route, exc_info=error)
        return ApiError()

    def note_answered(self, method: str, route: str, status: int, began: float, request_id: str) -> None:
        """Count a request that was answered, and log it. ``began``: by ``time.monotonic``."""
        took = time.monotonic() - began
        self._requests.note(method, route, status, took)
        log_request(method, route, status, took, request_id)

    def known_caller(self, token_hash: bytes) -> tokens.Caller | None:
        """Return who is calling if the session is remembered. Raises StoreError, and what ``use`` raises."""
        session = self._sessions.known(token_hash)
        return self._activity.use(session, self._freshness.look()) if session else None

    async def _caller(self, token_hash: bytes) -> tokens.Caller:
        """Return who is calling. Raises what ``use`` raises."""
        return self.known_caller(token_hash) or self._activity.use(
            await self._sessions.find(token_hash), self._freshness.look()
        )


def new_request_id() -> str:
    """Return an id by which a request is found in the log."""
    return f"{_chance.getrandbits(128):032x}"


@web.middleware
async def pipeline(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Do what happens around every request that aiohttp has found a handler for, or none."""
    if request.method == hdrs.METH_OPTIONS and request.app[app_keys.CROSS_ORIGIN].allows(request.headers.get("Origin")):
        handler = _preflight
    endpoint = request.app[app_keys.ENDPOINTS].get(request.match_info.handler)
    return await request.app[PIPELINE].handle(request, _route(request), endpoint, handler)


async def _preflight(request: web.Request) -> web.Response:
    """Answer a browser that asks whether a page may send a request, see ``wire.cross_origin``.

    For a path that does not exist all methods are allowed: otherwise the page could not read the 404.
    """
    refused, endpoints = request.match_info.http_exception, request.app[app_keys.ENDPOINTS].values()
    known = refused.allowed_methods if isinstance(refused, web.HTTPMethodNotAllowed) else set[str]()
    methods = known or {endpoint.method for endpoint in endpoints}
    auth_header = request.app[app_keys.CONFIG].auth_header
    return web.Response(status=204, headers=response_head.preflight(methods, auth_header))


PIPELINE = web.AppKey("request_pipeline", RequestPipeline)


def _as_api_error(error: ApiError | StoreError | web.HTTPException) -> ApiError:
    """Return what a client is told of an error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, StoreError):
        return StorageFullError() if isinstance(error, StoreFullError) else UnavailableError(seconds=RETRY_SECONDS)
    return convert_aiohttp_error(error)


def _may_wait(request: web.Request, response: web.StreamResponse) -> bool:
    if not isinstance(response, web.Response):
        return isinstance(response, StreamedResponse)  # files go a block at a time by themselves
    if isinstance(response.body, bytes) and len(response.body) > AIOHTTP_MAX_BYTES:
        return True
    return request.transport is not None and request.transport.get_write_buffer_size() > 0


def convert_aiohttp_error(error: web.HTTPException) -> ApiError:
    """Return this server's error for an error of aiohttp."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        return MethodNotAllowedError(sorted(error.allowed_methods))
    if isinstance(error, web.HTTPNotFound):
        return NotFoundError("no such path")
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return BodyTooLargeError()
    return BadRequestError(error.reason)


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource else "unknown"
