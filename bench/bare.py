"""A bare aiohttp server that does nothing but answer: the limit for a server of this library on this machine."""

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Self

import uvloop
from aiohttp import web


@dataclass(frozen=True)
class Answer:
    """What a path answers. A POST reads the request's body first."""

    content_type: str
    body: bytes


class Bare:
    """The server in a process of its own, from its start to the end of the block. ``answers``: by path."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(dict(answers), there), daemon=True)
        self._process.start()
        self.port: int = here.recv()

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
