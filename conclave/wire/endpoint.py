"""Says what an endpoint is: its path, who may call it, its messages, and the errors of its own.

This is the one description of it. Requests are read by its schemas, responses are written by them, and the OpenAPI
document is made from them.
"""

from dataclasses import dataclass
from enum import Enum

from aiohttp import web
from aiohttp.typedefs import Handler

from conclave.errors import ApiError
from conclave.wire.negotiate import Format
from conclave.wire.results import WireMessage
from conclave.wire.schemas.base import QuerySchema, RequestSchema


class Who(Enum):
    """Who may call, as the protocol writes it."""

    ANYBODY = "-"
    USER = "A"
    MEMBER = "M"
    ADMIN = "G"
    INVITEE = "I"


@dataclass(frozen=True)
class Endpoint:
    """An endpoint.

    ``body`` and ``query``: what the request holds. ``answer``: the message of a success; None if a success has no body,
    or one of another kind. ``refuses``: the errors that depend on more than the token, the ids in the path, the form of
    the body and the role. ``head``: whether a HEAD is answered, as a GET without its body. ``format``: the format of
    every answer, without negotiation; None where negotiation decides. ``media_type``: that of a success which is no
    message; None if it is a message or has no body.
    """

    method: str
    path: str
    handler: Handler
    who: Who = Who.USER
    body: type[RequestSchema] | None = None
    query: type[QuerySchema] | None = None
    answer: type[WireMessage] | None = None
    status: int = 200
    refuses: tuple[type[ApiError], ...] = ()
    head: bool = True
    format: Format | None = None
    media_type: str | None = None

    @property
    def public(self) -> bool:
        """Whether it needs no token."""
        return self.who is Who.ANYBODY


ENDPOINT = web.RequestKey("endpoint", Endpoint)
"""The endpoint that a request is for; absent where there is none."""
