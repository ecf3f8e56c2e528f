"""A load generator: keep-alive connections of bare sockets, each with its own requests, in a process of its own.

It costs as little as possible for each request, since it shares the machine with what it measures. Requests are made
beforehand. Of an answer it looks at the status and the Content-Length; the body is counted and not kept.
"""

import asyncio
import gc
import math
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle
from typing import cast

import uvloop

WARM_UP_SECONDS = 0.3
PATIENCE_SECONDS = 60.0
"""How long after the end of the load the last answer may come."""

BUFFER_BYTES = 256 * 1024
HEAD_BYTES = 4096


@dataclass(frozen=True)
class Load:
    """What to ask. ``requests``: those of each connection, asked in turn; by default over and over again.

    ``seconds``: how long, after a warm-up that does not count. None: each request once, and all count.
    """

    port: int
    requests: Sequence[Sequence[bytes]]
    seconds: float | None


@dataclass(frozen=True)
class Outcome:
    """What came of a load. ``seconds``: from each request to the end of its answer, of those that count.

    ``answered``: how many answers there were, with those of the warm-up. ``lengths``: which lengths their bodies had.
    ``busy``: the generator's share of a core.
    """

    rate: float
    seconds: Sequence[float]
    answered: int = 0
    lengths: frozenset[int] = frozenset()
    busy: float = 0


def generator() -> ProcessPoolExecutor:
    """Return the process in which loads run, one after the other: ``generator().submit(run, load)``."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def run(load: Load) -> Outcome:
    """Ask as ``load`` says. Raises RuntimeError if an answer is no success, or a connection ends."""
    gc.collect()
    gc.disable()
    try:
        return uvloop.run(_run(load))
    finally:
        gc.enable()


async def _run(load: Load) -> Outcome:
    loop = asyncio.get_running_loop()
    tally = _Tally(len(load.requests))
    connections = [_Connection(tally, iter(each) if load.seconds is None else cycle(each)) for each in load.requests]
    for each in connections:
        await loop.create_connection(lambda each=each: each, "127.0.0.1", load.port)  # type: ignore[misc]
    began, worked = time.perf_counter(), time.process_time()
    if load.seconds is not None:
        tally.begin = began + WARM_UP_SECONDS
        tally.end = tally.begin + load.seconds
    for each in connections:
        each.ask(time.perf_counter())
    try:
        await asyncio.wait_for(tally.done, PATIENCE_SECONDS + (load.seconds or PATIENCE_SECONDS))
    finally:
        for each in connections:
            each.transport.abort()
    took = time.perf_counter() - began
    counted = took if load.seconds is None else load.seconds
    busy = (time.process_time() - worked) / took
    return Outcome(len(tally.seconds) / counted, tally.seconds, tally.answered, frozenset(tally.lengths), busy)


@dataclass
class _Tally:
    """What all connections count together. Answers between ``begin`` and ``end`` count."""

    asking: int
    begin: float = -math.inf
    end: float = math.inf
    answered: int = 0
    seconds: list[float] = field(default_factory=list)
    lengths: set[int] = field(default_factory=set)
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(BUFFER_BYTES)))
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def finish(self) -> None:
        self.asking -= 1
        if not self.asking and not self.done.done():
            self.done.set_result(None)

    def fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(why))


class _Connection(asyncio.BufferedProtocol):
    """All read into the same buffer: the event loop reads for one of them at a time."""

    def __init__(self, tally: _Tally, requests: Iterator[bytes]) -> None:
        self._tally = tally
        self._requests = requests
        self._head = b""
        self._left = 0
        """Bytes of the answer that are still to come."""
        self._began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's only look like one

    def ask(self, now: float) -> None:
        request = next(self._requests, None) if now < self._tally.end else None
        if request is None:
            self._tally.finish()
            return
        self._began = now
        self.transport.write(request)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._tally.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._left:
            self._left -= nbytes
        elif not self._begin_answer(nbytes):
            return
        if self._left < 0:
            self._tally.fail("more came than was asked for")
        elif not self._left:
            self._end_answer()

    def _begin_answer(self, nbytes: int) -> bool:
        """Take the first bytes of an answer; tell whether its head is complete, and a success."""
        known = len(self._head)
        self._head += bytes(self._tally.buffer[: min(nbytes, HEAD_BYTES)])
        end = self._head.find(b"\r\n\r\n")
        if end < 0 and nbytes < HEAD_BYTES:
            return False
        head = self._head[:end].lower()
        at = head.find(b"\r\ncontent-length:")
        if not head.startswith(b"http/1.1 2") or at < 0:
            self._tally.fail(f"not a success: {self._head[:1024]!r}")
            return False
        stop = head.find(b"\r\n", at + 17)
        length = int(head[at + 17 : stop if stop > 0 else None])
        self._tally.lengths.add(length)
        self._left = end + 4 + length - known - nbytes
        self._head = b""
        return True

    def _end_answer(self) -> None:
        now, tally = time.perf_counter(), self._tally
        tally.answered += 1
        if tally.begin <= now < tally.end:
            tally.seconds.append(now - self._began)
        self.ask(now)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tally.fail(f"a connection has ended: {exc}")
