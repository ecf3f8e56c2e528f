"""Makes the requests of a load as bytes, and checks once what they are answered."""

import base64
import json
import os
import socket
from collections.abc import Sequence
from http.client import HTTPResponse

from bench.bare import Answer
from bench.stores import Store
from conclave.wire.conclave_pb2 import GetMessagesResponse, SendMessageRequest
from conclave.wire.formats import Format as Format  # noqa: PLC0414 - served.py has it from here, of any version

API = "/api/v1"
PATIENCE_SECONDS = 30.0


def get(path: str, written: Format, token: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n{_credentials(token)}Accept: {written.value}\r\n\r\n".encode()


def post(path: str, written: Format, body: bytes, token: str = "") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\n{_credentials(token)}Accept: {written.value}\r\n"
        f"Content-Type: {written.value}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def message(body: bytes, written: Format) -> bytes:
    """The body of a send."""
    if written is Format.PROTOBUF:
        return SendMessageRequest(mls_message=body).SerializeToString()
    return json.dumps({"mls_message": base64.b64encode(body).decode()}).encode()


def login(username: str, password: str) -> bytes:
    body = json.dumps({"username": username, "password": password}).encode()
    return post(f"{API}/login", Format.JSON, body)


def fetch(store: Store, user: int, group: int, written: Format, after: int, limit: int) -> bytes:
    return get(f"{_messages(store, group)}?after={after}&limit={limit}", written, store.tokens[user])


def fetches(store: Store, connections: int, written: Format, after: int, limit: int) -> list[list[bytes]]:
    """One member a connection, with a page of each own group."""
    return [
        [fetch(store, user, each, written, after, limit) for each in store.groups_of[user]]
        for user in _users(store, connections)
    ]


def sends(store: Store, connections: int, written: Format, size: int) -> list[list[bytes]]:
    """One sender a connection, with a message to each own group; no two bodies are alike."""
    return [
        [
            post(_messages(store, each), written, message(os.urandom(size), written), store.tokens[user])
            for each in store.groups_of[user]
        ]
        for user in _users(store, connections)
    ]


def path(request: bytes) -> str:
    """The path of a request, without its query."""
    return request.split(b" ", 2)[1].partition(b"?")[0].decode()


def ask(port: int, request: bytes) -> Answer:
    """Ask once, over a connection of its own. Raises RuntimeError unless the answer is a success."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as connection:
        connection.sendall(request)
        response = HTTPResponse(connection)
        response.begin()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {body[:1024]!r}")
        return Answer(response.getheader("Content-Type", "").partition(";")[0], body)


def require_pages(port: int, requests: Sequence[Sequence[bytes]], written: Format, bodies: Sequence[bytes]) -> Answer:
    """Ask each of ``requests`` once, and return an answer. Raises RuntimeError unless each has just ``bodies``."""
    for each in [request for requests_of_one in requests for request in requests_of_one]:
        answer = ask(port, each)
        if answer.content_type != written.value or _bodies(answer, written) != list(bodies):
            raise RuntimeError(f"not the page of {len(bodies)}: {answer.content_type}, {len(answer.body)} bytes")
    return answer


def require_number(port: int, request: bytes, written: Format) -> Answer:
    """Send once. Raises RuntimeError unless the answer is in ``written`` and has some bytes."""
    answer = ask(port, request)
    if answer.content_type != written.value or not answer.body:
        raise RuntimeError(f"not the answer to a send: {answer}")
    return answer


def _bodies(answer: Answer, written: Format) -> list[bytes]:
    if written is Format.PROTOBUF:
        return [each.mls_message for each in GetMessagesResponse.FromString(answer.body).messages]
    return [base64.b64decode(each["mls_message"]) for each in json.loads(answer.body)["messages"]]


def _users(store: Store, connections: int) -> list[int]:
    return [n * len(store.tokens) // connections for n in range(connections)]


def _messages(store: Store, group: int) -> str:
    return f"{API}/groups/{store.groups[group]}/messages"


def _credentials(token: str) -> str:
    return f"Authorization: Bearer {token}\r\n" if token else ""
