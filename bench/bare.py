"""Bare servers that do nothing but answer: the limits for a server of these libraries on this machine.

One is an aiohttp application, the other a protocol on httptools that keeps the headers and nothing else.
"""

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Self, cast

import uvloop
from aiohttp import web
from httptools import HttpRequestParser


@dataclass(frozen=True)
class Answer:
    """What a path answers. A POST reads the request's body first."""

    content_type: str
    body: bytes


class Bare:
    """The server in a process of its own, from its start to the end of the block. ``answers``: by path."""

    def __init__(self, answers: Mapping[str, Answer], *, is_protocol: bool = False) -> None:
        """``is_protocol``: no aiohttp, and every path has the first answer."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        work = _serve_protocol if is_protocol else _serve
        self._process = context.Process(target=work, args=(dict(answers), there), daemon=True)
        self._process.start()
        self.port: int = here.recv()
        assert self._process.pid
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()


def _serve(answers: dict[str, Answer], tell: Connection) -> None:
    uvloop.run(_listen(answers, tell))


async def _listen(answers: dict[str, Answer], tell: Connection) -> None:
    app = web.Application()
    for path, answer in answers.items():
        app.router.add_get(path, _get(answer))
        app.router.add_post(path, _post(answer))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    tell.send(runner.addresses[0][1])
    await asyncio.Event().wait()


def _get(answer: Answer) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=answer.body, content_type=answer.content_type)

    return handle


def _post(answer: Answer) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=answer.body, content_type=answer.content_type)

    return handle


class _Protocol(asyncio.Protocol):
    """Answers each request that httptools has read. Requests are not pipelined, and their bodies are not looked at."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._headers: dict[bytes, bytes] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's only look like one
        self._parser = HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_message_complete(self) -> None:
        self._headers.clear()
        self._transport.write(self._answer)


def _serve_protocol(answers: dict[str, Answer], tell: Connection) -> None:
    uvloop.run(_listen_by_protocol(next(iter(answers.values())), tell))


async def _listen_by_protocol(answer: Answer, tell: Connection) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n\r\n"
    whole = head.encode() + answer.body
    listening = await asyncio.get_running_loop().create_server(lambda: _Protocol(whole), "127.0.0.1", 0, backlog=1024)
    tell.send(listening.sockets[0].getsockname()[1])
    await asyncio.Event().wait()
