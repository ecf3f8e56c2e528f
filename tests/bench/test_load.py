"""The load generator, against the bare server and against sockets that misbehave."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread

import pytest

from bench.bare import Answer, Bare
from bench.load import Load, run
from bench.requests import ask, get, post
from conclave.wire.formats import Format

LONG = Answer("application/json", b"x" * 1_000_000)
SHORT = Answer("application/x-protobuf", b"")


@pytest.fixture(scope="module")
def bare() -> Iterator[Bare]:
    with Bare({"/long": LONG, "/short": SHORT}) as server:
        yield server


@contextmanager
def sending(pieces: Sequence[bytes]) -> Iterator[int]:
    """A server of one connection: sends ``pieces`` one after the other, whatever it is asked, and closes."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.recv(65536)
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.002)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def test_the_bare_server_answers_what_it_was_given(bare: Bare) -> None:
    assert ask(bare.port, get("/long", Format.JSON)) == LONG
    assert ask(bare.port, post("/short", Format.PROTOBUF, b"a body")) == SHORT


def test_each_request_is_asked_once_and_counted(bare: Bare) -> None:
    requests = [[get("/long", Format.JSON)] * 3, [post("/short", Format.JSON, b"a body")] * 5, []]
    outcome = run(Load(bare.port, requests, seconds=None))
    assert (outcome.answered, len(outcome.seconds)) == (8, 8)
    assert outcome.lengths == {len(LONG.body), 0}


def test_with_a_time_requests_are_asked_over_and_over_and_the_warm_up_does_not_count(bare: Bare) -> None:
    for seconds in (0.1, 1, 10, 60):
        outcome = run(Load(bare.port, [[get("/short", Format.JSON)]] * 4, seconds=seconds))
        if len(outcome.seconds) > 4:  # a machine that is busy answers none in a tenth of a second
            break
    assert 4 < len(outcome.seconds) < outcome.answered


def test_an_answer_that_is_no_success_ends_the_load(bare: Bare) -> None:
    with pytest.raises(RuntimeError, match="404"):
        run(Load(bare.port, [[get("/short", Format.JSON), get("/else", Format.JSON)]], seconds=None))


@pytest.mark.parametrize("size", [1, 7, 60])
def test_an_answer_may_come_in_pieces(size: int) -> None:
    answer = b"HTTP/1.1 201 Created\r\ncontent-length: 10\r\nServer: x\r\n\r\n0123456789"
    with sending([answer[n : n + size] for n in range(0, len(answer), size)]) as port:
        outcome = run(Load(port, [[b"a request"]], seconds=None))
    assert (outcome.answered, outcome.lengths) == (1, frozenset({10}))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n012345678", "a connection has ended"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789a", "more came"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "not a success"),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "503"),
    ],
)
def test_an_answer_that_is_not_whole_or_not_understood_ends_the_load(answer: bytes, said: str) -> None:
    with sending([answer]) as port, pytest.raises(RuntimeError, match=said):
        run(Load(port, [[b"a request"]], seconds=None))
