"""Requests as large as the server takes them: made of the route table and the schemas, so that no endpoint is missing.

A request is built right before it is sent; what others wait is measured only while it is under way.
"""

import asyncio
import gzip
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from marshmallow import fields

from conclave.server.routes import ROUTES
from conclave.wire import conclave_pb2
from conclave.wire.exchange import MAX_BODY_BYTES, Endpoint
from conclave.wire.fields import BoundedList
from conclave.wire.openapi import examples
from conclave.wire.schemas.base import schema_instance
from tests.support.client import Client
from tests.support.protobuf import PROTOBUF, encode, varint

JSON = {"Content-Type": "application/json"}
LINE = 8_000
"""What aiohttp takes of a request line or a header is a little more."""

HEADERS = 100
"""It takes 128, the usual ones among them."""

NOWHERE = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True)
class Attack:
    """A request; ``body`` is made when it is wanted."""

    what: str
    method: str
    path: str
    headers: list[tuple[str, str]]
    body: Callable[[], bytes] = bytes
    is_chunked: bool = False

    def head(self) -> bytes:
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: x", "Connection: close"]
        return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in self.headers)]).encode()


@dataclass
class Outcome:
    """What came of an attack, and the seconds that others waited meanwhile."""

    attack: Attack
    status: int
    size: int
    waited: list[float] = field(default_factory=list)


class Attacker:
    """A user with a group for each endpoint, and somebody else whose ids are known."""

    def __init__(self, client: Client, victim: Client, groups: Mapping[str, str]) -> None:
        self.client = client
        self.victim = victim
        self._groups = groups

    @classmethod
    async def settle(cls, client: Client, victim: Client) -> "Attacker":
        groups = {}
        for number, endpoint in enumerate(each for each in ROUTES if "{group_id}" in each.path):
            groups[_name(endpoint)] = await client.create_group(f"attacked_{number}")
            await victim.join(groups[_name(endpoint)])
        return cls(client, victim, groups)

    def attacks(self) -> Iterator[Attack]:
        for endpoint in ROUTES:
            yield from self._of_line(endpoint)
            if endpoint.body:
                yield from self._of_body(endpoint)
        yield from self._of_transport()

    def _of_line(self, endpoint: Endpoint) -> Iterator[Attack]:
        """Too much in the path, the query and the headers."""
        if endpoint.media_type == "text/event-stream":
            return  # it would stay open
        for name in re.findall(r"\{(\w+)\}", endpoint.path):
            for what in ("a", "%00", "%25"):
                path = endpoint.path.replace(f"{{{name}}}", what * (LINE // len(what)))
                yield self._attack(endpoint, f"{name} of {what}", self._fill(path, endpoint))
        names = schema_instance(endpoint.query).fields if endpoint.query else {}
        for name in names:
            for value in ("9" * LINE, "%25_" * (LINE // 4), "a&" * (LINE // 2)):
                path = f"{self._fill(endpoint.path, endpoint)}?{name}={value}"
                yield self._attack(endpoint, f"query {name}={value[:4]}", path)

    def _of_body(self, endpoint: Endpoint) -> Iterator[Attack]:
        assert endpoint.body
        kind, schema = endpoint.body.__name__, schema_instance(endpoint.body)
        example = self._example(endpoint)
        path = self._fill(endpoint.path, endpoint)
        for name, written in _json_bodies(example, schema.fields):
            yield self._attack(endpoint, f"JSON: {name}", path, JSON, written)
        for name, written in _protobuf_bodies(kind, encode(kind, example)):
            yield self._attack(endpoint, f"protobuf: {name}", path, PROTOBUF, written)
        if not endpoint.public:
            yield Attack(
                f"{_name(endpoint)} without a token",
                endpoint.method,
                path,
                [*JSON.items()],
                partial(_repeated, b'{"a": [[]', b",[]", b"]}"),
            )

    def _of_transport(self) -> Iterator[Attack]:
        me = next(each for each in ROUTES if each.path.endswith("/me") and each.method == "GET")
        login = next(each for each in ROUTES if each.path.endswith("/login"))
        for name, value in (
            ("Accept", "a," * (LINE // 2)),
            ("Accept", ";" * LINE),
            ("X-Forwarded-For", "," * LINE),
            ("X-Forwarded-For", "1.1.1.1," * (LINE // 8)),
            ("Cookie", "a=b;" * (LINE // 4)),
            ("Content-Type", ";" * LINE),
        ):
            for endpoint, body in ((me, bytes), (login, lambda: b'{"username": "x", "password": "wrong password"}')):
                headers = [*self._token(endpoint), *JSON.items(), *[(name, value)] * HEADERS]
                what = f"{HEADERS} of {name}: {value[:4]}"
                yield Attack(f"{_name(endpoint)} {what}", endpoint.method, endpoint.path, headers, body)
        yield Attack("a path of slashes", "GET", "/" * LINE, [])
        chunked = [*JSON.items(), ("Transfer-Encoding", "chunked")]
        yield Attack("chunks of a byte", "POST", login.path, chunked, _tiny_chunks, is_chunked=True)
        packed = [*JSON.items(), ("Content-Encoding", "gzip")]
        yield Attack("a body that grows", "POST", login.path, packed, _growing)

    def _attack(
        self,
        endpoint: Endpoint,
        what: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: Callable[[], bytes] = bytes,
    ) -> Attack:
        sent = [*self._token(endpoint), *(headers or {}).items()]
        return Attack(f"{_name(endpoint)} {what}", endpoint.method, path, sent, body)

    def _token(self, endpoint: Endpoint) -> list[tuple[str, str]]:
        return [] if endpoint.public else [("Authorization", f"Bearer {self.client.token}")]

    def _fill(self, path: str, endpoint: Endpoint) -> str:
        known = {"group_id": self._groups.get(_name(endpoint), NOWHERE), "user_id": self.victim.user_id}
        return re.sub(r"\{(\w+)\}", lambda name: known.get(name[1], NOWHERE), path)

    def _example(self, endpoint: Endpoint) -> dict[str, Any]:
        assert endpoint.body
        known = {
            "user_id": self.victim.user_id,
            "invitee_id": self.victim.user_id,
            "user_ids": [self.victim.user_id],
            "password": "wrong password",
            "current_password": "wrong password",
        }
        return {
            name: known.get(name, value) for name, value in examples.example(schema_instance(endpoint.body)).items()
        }


def _name(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


def _json_bodies(
    example: dict[str, Any], known: Mapping[str, fields.Field[Any]]
) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield what is wrong with a body, and how it is written."""
    for number, (name, each) in enumerate(known.items()):
        for what, parts in list(_VALUES.items())[: None if number == 0 else _FOR_EACH]:
            yield f"{what} as {name}", partial(_json_field, example, name, *parts)
        if isinstance(each, BoundedList):
            yield f"as many as may be as {name}", partial(_many, example, name, each.most)
    yield "brackets", partial(bytes.ljust, b"", MAX_BODY_BYTES, b"[")
    yield "a text without an end", partial(_repeated, b'{"', rb"\",", b"")
    yield "a long name", partial(_repeated, b'{"', b"n", b'": 1}')
    yield "a name again and again", partial(_repeated, b'{"a":1', b',"a":1', b"}")
    for count in (4_900, 65_000):
        yield f"{count} names", partial(_names, count)


_VALUES: dict[str, tuple[bytes, bytes, bytes]] = {
    "a long text": (b'"', b"a", b'"'),
    "lists": (b"[[]", b",[]", b"]"),
    "escapes": (b'"', rb"\u0041", b'"'),
    "numbers": (b"[1", b",1", b"]"),
    "commas in a text": (b'"', b",", b'"'),
    "lists in lists": (b"[[]", b"," + b"[" * 500 + b"]" * 500, b"]"),
    "objects": (b"[{}", b",{}", b"]"),
    "texts": (b'[""', b',""', b"]"),
    "a long number": (b"1", b"0", b""),
}
"""How a value begins, what it repeats, how it ends."""

_FOR_EACH = 2
"""So many of them are tried as each field, all of them as the first of a message."""


def _json_field(example: dict[str, Any], name: str, begin: bytes, again: bytes, end: bytes) -> bytes:
    """Write a body whose field ``name`` holds as much as there is room for."""
    rest = json.dumps({other: value for other, value in example.items() if other != name}).encode()[:-1]
    comma = b", " if len(rest) > 1 else b""
    return _repeated(rest + comma + json.dumps(name).encode() + b": " + begin, again, end + b"}")


def _repeated(begin: bytes, again: bytes, end: bytes) -> bytes:
    return begin + again * ((MAX_BODY_BYTES - len(begin) - len(end)) // len(again)) + end


def _many(example: dict[str, Any], name: str, most: int) -> bytes:
    return json.dumps(example | {name: example[name][:1] * most}).encode()


def _names(count: int) -> bytes:
    return json.dumps(dict.fromkeys(map(str, range(count)))).encode()


def _protobuf_bodies(kind: str, example: bytes) -> Iterator[tuple[str, Callable[[], bytes]]]:
    for each in conclave_pb2.DESCRIPTOR.message_types_by_name[kind].fields:
        if each.type in (each.TYPE_STRING, each.TYPE_BYTES, each.TYPE_MESSAGE):
            tag = varint(each.number << 3 | 2)
            yield f"{each.name} empty, often", partial(_repeated, example, tag + b"\0", b"")
            yield f"{each.name} long", partial(_long, example, tag)
        else:
            yield f"{each.name} often", partial(_repeated, example, varint(each.number << 3) + b"\x01", b"")
    for what, again in _UNKNOWN.items():
        yield what, partial(_repeated, example, again, b"")
    half = (MAX_BODY_BYTES - len(example)) // 2
    yield "groups in groups", lambda: example + b"\x7b" * half + b"\x7c" * half


_UNKNOWN = {
    "unknown numbers": b"\x78\0",
    "unknown bytes": b"\x7a\0",
    "groups": b"\x7b\x7c",
    "groups in groups, as deep as may be": b"\x7b" * 90 + b"\x7c" * 90,
}
"""Of the field 15, which no message has: what is repeated."""


def _long(begin: bytes, tag: bytes) -> bytes:
    size = MAX_BODY_BYTES - len(begin) - len(tag) - 3
    return begin + tag + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + b"a" * size


def _growing() -> bytes:
    return gzip.compress(b" " * (100 * MAX_BODY_BYTES))


def _tiny_chunks() -> bytes:
    return b"1\r\n \r\n" * (MAX_BODY_BYTES // 6) + b"0\r\n\r\n"


async def launch(attack: Attack, port: int, probes: list[Callable[[], Awaitable[Any]]]) -> Outcome:
    """Send an attack, and measure what each of the ``probes``, again and again, waits until it is answered."""
    outcome = Outcome(attack, 0, 0)
    body = attack.body()
    length = "" if attack.is_chunked or not body else f"\r\nContent-Length: {len(body)}"
    over = asyncio.Event()
    probing = [asyncio.create_task(_probe(each, outcome.waited, over)) for each in probes]
    await asyncio.sleep(0)
    try:
        answer = await send(port, attack.head() + length.encode() + b"\r\n\r\n" + body)
    except ConnectionError as error:
        raise RuntimeError(f"no answer to {attack.what}") from error
    finally:
        over.set()
        await asyncio.gather(*probing)
    outcome.status, outcome.size = int(answer[9:12] or 0), len(answer)
    return outcome


async def send(port: int, data: bytes) -> bytes:
    """Send bytes over a connection of their own; return all that is answered. Raises ConnectionError."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        with suppress(ConnectionError):  # an answer may come before all was sent
            await writer.drain()
        return await reader.read()
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _probe(ask: Callable[[], Awaitable[Any]], waited: list[float], over: asyncio.Event) -> None:
    while not over.is_set():
        began = time.perf_counter()
        await ask()
        waited.append(time.perf_counter() - began)
