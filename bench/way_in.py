"""The way in: what the port takes for each request, in the forms in which clients and proxies ask.

Beside it, in the same run and with the same bytes: a bare aiohttp application and a bare protocol on httptools that
give the same answers. Rates are those of ``wrk``; beside each the processor time of the server for a request, which
says more where others use the machine too.
"""

import os
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench import requests, stores, wrk
from bench.bare import Answer, Bare
from bench.figures import Figure, at_least, number, single
from bench.process import Server
from conclave.wire.formats import Format

USERS, GROUPS, MEMBERS = 128, 64, 8
PAGE, BODY_BYTES = 100, 1024
ROUNDS = int(os.environ.get("CONCLAVE_BENCH_ROUNDS", "3"))
ROUND_SECONDS = 2
BINARY, JSON = Format.PROTOBUF, Format.JSON

_NGINX = """daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/log;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream conclave {{ server 127.0.0.1:{port}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{own};
    location / {{
      proxy_pass http://conclave; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_set_header X-Request-ID $request_id; proxy_set_header X-Forwarded-For $remote_addr;
    }}
  }}
}}
"""

Side = Callable[[], wrk.Took]


def forms(folder: Path) -> list[Figure]:
    """Polls, pages and sends of a default server with 128 users in 64 groups of 8, with its request lines."""
    if not wrk.is_there():
        return [Figure("the way in", "wrk is not installed", "", "")]
    return _WayIn(folder).measure()


class _WayIn:
    def __init__(self, folder: Path) -> None:
        now = int(time.time())
        self._folder = folder
        self._body = os.urandom(BODY_BYTES)
        shape = stores.Shape(USERS, GROUPS, MEMBERS, body=self._body)
        self._store = stores.build(folder, "sql", now, shape, [now] * PAGE)

    def measure(self) -> list[Figure]:
        with Server(self._store.config) as server:
            server.wait_for("cleanup_run")
            self._port, self._pid = int(server.url.rpartition(":")[2]), server.process.pid
            return [*self._polls(), *self._pages(), *self._sends(), *self._others()]

    def _fetches(self, query: str, written: Format, field: str = "") -> list[bytes]:
        """A request of each of 32 users to each of their groups."""
        found = []
        for user in range(0, USERS, USERS // 32):
            for each in self._store.groups_of[user]:
                path = f"{requests.API}/groups/{self._store.groups[each]}/messages"
                text = requests.get(f"{path}{query}", written, self._store.tokens[user])
                found.append(text.replace(b"Host: x\r\n", f"Host: x\r\n{field}".encode()))
        return found

    def _polls(self) -> list[Figure]:
        alone = self._fetches(f"?after={PAGE}", BINARY)
        answer = requests.require_pages(self._port, [alone], BINARY, [])
        usual = {
            "User-Agent": "x/1.0",
            "Accept-Encoding": "gzip, deflate",
            "Cookie": "a=b",
            "X-Forwarded-For": "10.1.2.3",
        }
        more = "".join(f"{name}: {text}\r\n" for name, text in usual.items())
        with (
            Bare({requests.path(alone[0]): answer}) as bare,
            Bare({requests.path(alone[0]): answer}, is_protocol=True) as protocol,
            self._nginx(self._port) as proxy,
        ):
            took = self._in_turn(
                {
                    "bare httptools protocol": self._side(alone[:1], 32, port=protocol.port, pid=protocol.pid),
                    "bare aiohttp application": self._side(alone[:1], 32, port=bare.port, pid=bare.pid),
                    "?after=N": self._side(alone, 32),
                    "?after=N&limit=M": self._side(self._fetches(f"?after={PAGE}&limit=100", BINARY), 32),
                    "?limit=M&after=N": self._side(self._fetches(f"?limit=100&after={PAGE}", BINARY), 32),
                    "?after=N&include_redacted=true": self._side(
                        self._fetches(f"?after={PAGE}&include_redacted=true", BINARY), 32
                    ),
                    "?after=N, a header that varies": self._side(alone, 32, varies=True),
                    "?after=N, six more headers": self._side(self._fetches(f"?after={PAGE}", BINARY, more), 32),
                    "?after=N, JSON": self._side(self._fetches(f"?after={PAGE}", JSON), 32),
                    "?after=N, behind nginx": self._side(alone, 32, port=proxy),
                }
            )
        what = "nothing new, 32 connections"
        plain = took["?after=N"]
        others = [name for name in took if name.startswith("?") and name != "?after=N"]
        return [
            *_rows(what, took),
            *_against(f"{what}: ?after=N / bare aiohttp application", plain, took["bare aiohttp application"], 1.5),
            *(row for name in others for row in _against(f"{what}: {name} / ?after=N", took[name], plain, 0.9)),
        ]

    def _pages(self) -> list[Figure]:
        asked = self._fetches("", BINARY)
        answer = requests.require_pages(self._port, [asked], BINARY, [self._body] * PAGE)
        took = self._beside(asked, answer, 32)
        what = f"page of {PAGE} x 1 KiB, 32 connections"
        return [*_rows(what, took), *_against(f"{what}: / bare aiohttp application", took["ours"], took["bare"], 1.2)]

    def _sends(self) -> list[Figure]:
        asked = [each for one in requests.sends(self._store, USERS, BINARY, BODY_BYTES) for each in one]
        answer = requests.require_number(self._port, asked[0], BINARY)
        took = self._beside(asked, answer, USERS)
        what = f"durable send of 1 KiB, {USERS} connections"
        tail = statistics.median(each.p99 / each.median for each in took["ours"])
        return [
            *_rows(what, took),
            *_against(f"{what}: / bare aiohttp application", took["ours"], took["bare"], 0.75),
            single(f"{what}: p99 / median", tail, "times", most=3),
        ]

    def _others(self) -> list[Figure]:
        """Routes that aiohttp answers."""
        token = self._store.tokens[0]
        routes = {"GET /me": "/me", "GET /groups": "/groups", "GET of no path": "/nothing"}
        sides = {
            name: self._side([requests.get(f"{requests.API}{path}", BINARY, token)], 32, fails=path == "/nothing")
            for name, path in routes.items()
        }
        return _rows("other routes, 32 connections", self._in_turn(sides))

    def _beside(self, asked: list[bytes], answer: Answer, connections: int) -> Mapping[str, Sequence[wrk.Took]]:
        with Bare({requests.path(asked[0]): answer}) as bare:
            return self._in_turn(
                {
                    "bare": self._side(asked[:1], connections, port=bare.port, pid=bare.pid),
                    "ours": self._side(asked, connections),
                }
            )

    def _side(
        self,
        asked: list[bytes],
        connections: int,
        *,
        port: int | None = None,
        pid: int | None = None,
        varies: bool = False,
        fails: bool = False,
    ) -> Side:
        return partial(
            wrk.run,
            *(self._folder, port or self._port, pid or self._pid, asked, connections, ROUND_SECONDS),
            varies=varies,
            fails=fails,
        )

    def _in_turn(self, sides: Mapping[str, Side]) -> Mapping[str, Sequence[wrk.Took]]:
        rounds = [{name: side() for name, side in sides.items()} for _ in range(ROUNDS)]
        return {name: [each[name] for each in rounds] for name in sides}

    @contextmanager
    def _nginx(self, port: int) -> Iterator[int]:
        """Have nginx before a port, with connections kept and a header of its own for each request; yield its port."""
        folder = self._folder / "nginx"
        folder.mkdir(exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            own = int(free.getsockname()[1])
        (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, port=port, own=own))
        command = ["nginx", "-e", str(folder / "log"), "-p", str(folder), "-c", str(folder / "nginx.conf")]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                for _ in range(200):
                    with socket.socket() as trying:
                        if trying.connect_ex(("127.0.0.1", own)) == 0:
                            break
                    time.sleep(0.02)
                yield own
            finally:
                process.terminate()


def _rows(what: str, took: Mapping[str, Sequence[wrk.Took]]) -> list[Figure]:
    rows = []
    for name, each in took.items():
        rate, cpu = statistics.median(one.rate for one in each), statistics.median(one.cpu for one in each)
        tail = statistics.median(one.p99 for one in each)
        shown = f"{number(rate)} /s, {number(cpu)} us of the server each, p99 {number(tail)} ms"
        rows.append(Figure(f"{what}: {name}", shown, values={"rate": rate, "cpu": cpu, "p99": tail}))
    return rows


def _against(what: str, one: Sequence[wrk.Took], other: Sequence[wrk.Took], least: float) -> list[Figure]:
    """By rate, which is what counts; and by processor time, which others on the machine change less."""
    by_rate = statistics.median(each.rate for each in one) / statistics.median(each.rate for each in other)
    by_cpu = statistics.median(each.cpu for each in other) / statistics.median(each.cpu for each in one)
    return [at_least(f"{what}, rate", by_rate, "times", least), single(f"{what}, by processor time", by_cpu, "times")]
