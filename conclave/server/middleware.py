"""Processing around every request: request id, log line, error mapping, authentication."""

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
"""Clients may retry 5 seconds after a failure of the store."""

AIOHTTP_MAX_BYTES = 64 * 1024
"""aiohttp sends responses of at most 64 KiB, unless earlier bytes are still unsent."""

_random = random.Random()  # noqa: S311 - request ids are not secret


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the common headers to responses that were created without them, such as files."""
    cache_control = response.headers.get("Cache-Control")
    response.headers.update(response_headers(request))
    if cache_control:
        response.headers["Cache-Control"] = cache_control


class RequestPipeline:
    """Processing around every request, whether aiohttp or the fast path found its handler."""

    def __init__(self, app: web.Application) -> None:
        """``app``: was started, so its resources are open."""
        self._auth_header = app[app_keys.CONFIG].auth_header
        self._budget = app[app_keys.BUDGET]
        self._freshness = app[app_keys.FRESHNESS]
        self._sessions = app[app_keys.SESSIONS]
        self._activity = app[app_keys.ACTIVITY]
        self._requests = app[app_keys.REQUESTS]

    async def handle(
        self, request: web.Request, route: str, endpoint: Endpoint | None, handler: Handler
    ) -> web.StreamResponse:
        """Assign a request id and a format, authenticate, and run the handler.

        Errors become error responses. Responses that may block are sent here: large ones, and any to a client that has
        not read the previous one. The log gets ``route``, not the path: names and ids are private. ``endpoint``: None
        for an unknown path.
        """
        began_at = time.monotonic()
        request[REQUEST_ID] = request_id = new_request_id()
        structlog.contextvars.bind_contextvars(request_id=request_id)  # each request has its own task and context
        if endpoint:
            request[ENDPOINT] = endpoint
        request[tokens.TOKEN] = token = tokens.parse_token(request.headers.get(self._auth_header), self._auth_header)
        choose_format(request, token)
        request[BUDGET] = self._budget
        try:
            if endpoint and not endpoint.public:
                token_hash = tokens.token_hash(tokens.require_token(request))
                recheck: RecheckSession = partial(self._caller, token_hash)  # without the request: no reference cycle
                request[RECHECK_SESSION], request[BODY_PENDING] = recheck, not request.content.is_eof()
                request[tokens.CALLER] = caller = await self._caller(token_hash)
                request[ACCOUNT] = caller.user_id
            response = await handler(request)
            if _may_block(request, response) and not response.prepared:
                await hand_over(request, response, counts=False)
        except ConnectionError:
            self._requests.record(request.method, route, CLIENT_CLOSED, time.monotonic() - began_at)
            log.info("client_gone", method=request.method, route=route)
            raise
        except Exception as error:  # noqa: BLE001 - every error is answered
            response = reply_error(request, self.as_api_error(error, request.method, route))
        self.record_response(request.method, route, response.status, began_at, request_id)
        return response

    def as_api_error(self, error: Exception, method: str, route: str) -> ApiError:
        """Return the error for the client. Unexpected errors are logged with their traceback."""
        if isinstance(error, ApiError | StoreError | web.HTTPException):
            return _as_api_error(error)
        log.error("request_failed", method=method, route=route, exc_info=error)
        return ApiError()

    def record_response(self, method: str, route: str, status: int, began_at: float, request_id: str) -> None:
        """Count and log an answered request. ``began_at``: a value of ``time.monotonic``."""
        seconds = time.monotonic() - began_at
        self._requests.record(method, route, status, seconds)
        log_request(method, route, status, seconds, request_id)

    def cached_caller(self, token_hash: bytes) -> tokens.Caller | None:
        """Return the caller if the session is cached, else None. Raises StoreError, and as ``use`` does."""
        session = self._sessions.get(token_hash)
        return self._activity.use(session, self._freshness.refresh()) if session else None

    async def _caller(self, token_hash: bytes) -> tokens.Caller:
        """Return the caller. Raises as ``use`` does."""
        return self.cached_caller(token_hash) or self._activity.use(
            await self._sessions.load(token_hash), self._freshness.refresh()
        )


def new_request_id() -> str:
    """Return a random id that identifies a request in the log."""
    return f"{_random.getrandbits(128):032x}"


@web.middleware
async def pipeline(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Run the pipeline for a request that aiohttp routed, or found no route for."""
    if request.method == hdrs.METH_OPTIONS and request.app[app_keys.CROSS_ORIGIN].allows(request.headers.get("Origin")):
        handler = _preflight
    endpoint = request.app[app_keys.ENDPOINTS].get(request.match_info.handler)
    return await request.app[PIPELINE].handle(request, _route(request), endpoint, handler)


async def _preflight(request: web.Request) -> web.Response:
    """Answer a preflight request of a browser, see ``wire.response_head``.

    All methods are allowed for an unknown path: otherwise the page could not read the 404.
    """
    routing_error, endpoints = request.match_info.http_exception, request.app[app_keys.ENDPOINTS].values()
    path_methods = routing_error.allowed_methods if isinstance(routing_error, web.HTTPMethodNotAllowed) else set[str]()
    methods = path_methods or {endpoint.method for endpoint in endpoints}
    auth_header = request.app[app_keys.CONFIG].auth_header
    return web.Response(status=204, headers=response_head.preflight(methods, auth_header))


PIPELINE = web.AppKey("request_pipeline", RequestPipeline)


def _as_api_error(error: ApiError | StoreError | web.HTTPException) -> ApiError:
    """Return the error for the client."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, StoreError):
        return StorageFullError() if isinstance(error, StoreFullError) else UnavailableError(seconds=RETRY_SECONDS)
    return convert_aiohttp_error(error)


def _may_block(request: web.Request, response: web.StreamResponse) -> bool:
    if not isinstance(response, web.Response):
        return isinstance(response, StreamedResponse)  # aiohttp sends files in blocks
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
