"""What happens around every request: its id, its log line, the mapping of errors, authentication."""

import random
import time

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from conclave import keys
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
from conclave.logs import get_logger, log_request
from conclave.store.faults import StoreError, StoreFullError
from conclave.wire.endpoint import ENDPOINT
from conclave.wire.exchange import choose_format, reply_error
from conclave.wire.handover import SHARE, Pieces, hand_over
from conclave.wire.ready import HEADERS, REQUEST_ID, Ready

log = get_logger(__name__)

RETRY_SECONDS = 5
"""Clients may ask again 5 seconds after the store failed. An operator may have mended it by then."""

_chance = random.Random()  # noqa: S311 - ids of requests tell them apart, and open nothing


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Set the headers that every response has."""
    mark(response)
    if REQUEST_ID in request:
        response.headers["X-Request-ID"] = request[REQUEST_ID]


def mark(response: web.StreamResponse) -> None:
    """Set the headers that do not depend on the request."""
    response.headers.update({name: value for name, value in HEADERS.items() if name != "Cache-Control"})
    response.headers.setdefault("Cache-Control", HEADERS["Cache-Control"])


@web.middleware
async def observe(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request an id and a format, answer every error as an error response, log the request.

    The log gets the route, not the path: names and ids are nobody's business.
    """
    began = time.monotonic()
    request[REQUEST_ID] = request_id = f"{_chance.getrandbits(128):032x}"
    structlog.contextvars.bind_contextvars(request_id=request_id)  # the request has a task of its own, and a context
    endpoint = request.app[keys.ENDPOINTS].get(request.match_info.handler)
    if endpoint:
        request[ENDPOINT] = endpoint
    request[tokens.TOKEN] = token = tokens.token_in(request.headers, request.app[keys.CONFIG].auth_header)
    choose_format(request, token)
    try:
        response = await handler(request)
    except ApiError as error:
        response = reply_error(request, error)
    except StoreError as error:
        response = reply_error(request, _from_store(error))
    except web.HTTPException as error:
        response = reply_error(request, from_aiohttp(error))
    except ConnectionError:
        log.info("client_gone", method=request.method, route=_route(request))
        raise
    except Exception:
        log.exception("request_failed", method=request.method, route=_route(request))
        response = reply_error(request, ApiError())
    log_request(
        method=request.method,
        route=_route(request),
        status=response.status,
        ms=round((time.monotonic() - began) * 1000, 1),
        request_id=request_id,
    )
    return response


@web.middleware
async def deliver(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request its share of the memory for responses, and hand over responses that may wait.

    These are the large ones, and any response to a client that has not taken the one before yet.
    """
    request[SHARE] = share = request.app[keys.BUDGET].share()
    try:
        response = await handler(request)
        if not response.prepared and (share.held or _is_behind(request, response)):
            await hand_over(request, response)
    finally:
        share.close()
    return response


def _is_behind(request: web.Request, response: web.StreamResponse) -> bool:
    if isinstance(response, Pieces):
        return True
    if not isinstance(response, web.Response | Ready):
        return False  # files go a block at a time by themselves
    return request.transport is not None and request.transport.get_write_buffer_size() > 0


@web.middleware
async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Find out who is calling, unless the route is public or does not exist."""
    app, endpoint = request.app, request.get(ENDPOINT)
    if endpoint and not endpoint.public:
        session = await app[keys.SESSIONS].find(tokens.token_hash(tokens.require_token(request)))
        request[tokens.CALLER] = app[keys.ACTIVITY].use(session, app[keys.FRESHNESS].look())
    return await handler(request)


def _from_store(error: StoreError) -> ApiError:
    return StorageFullError() if isinstance(error, StoreFullError) else UnavailableError(seconds=RETRY_SECONDS)


def from_aiohttp(error: web.HTTPException) -> ApiError:
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
