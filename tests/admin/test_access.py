"""Who may ask the operators' listener: the token, and the name under which it is asked."""

import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from conclave.admin.access import Guard, TokenError
from conclave.config.admin import AdminConfig
from conclave.config.load import ConfigError, parse_config
from conclave.config.settings import Config
from conclave.health.parts import HealthPart
from tests.admin.conftest import Operators, operating_beside
from tests.conftest import StartServer

TOKEN = "0123456789abcdef" * 2
PATHS = ("/metrics", "/nothing", "/")


@pytest.fixture
async def guarded(config: Config, start_server: StartServer) -> AsyncIterator[Operators]:
    config = replace(config, admin=AdminConfig(token=TOKEN))
    async with start_server(config) as running, operating_beside(running) as found:
        yield found


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}0",
        f"Bearer {TOKEN.upper()}",
        f"Bearer {TOKEN[::-1]}",
        "Bearer \u2603",
    ],
)
async def test_without_the_token_everything_is_401(guarded: Operators, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    for path in PATHS:
        for method in ("GET", "POST", "HEAD"):
            status, body, response = await guarded.ask(path, method, **headers)
            assert status == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert response.headers["Cache-Control"] == "no-store"
            assert method == "HEAD" or list(body) == ["message"]


async def test_with_the_token_everything_is_as_it_was(guarded: Operators) -> None:
    for authorization in (f"Bearer {TOKEN}", f"bearer  {TOKEN} "):
        assert (await guarded.ask("/metrics", Authorization=authorization))[0] == 200
        assert (await guarded.ask("/nothing", Authorization=authorization))[0] == 404
        status, told, _ = await guarded.ask("/healthz", Authorization=authorization)
        assert (status, told) == (200, {"status": "ok", "faults": {}, "last_run": None, "cleanup": "none"})


async def test_without_the_token_health_is_a_word(guarded: Operators) -> None:
    assert (await guarded.ask("/healthz"))[:2] == (200, {"status": "ok"})
    assert (await guarded.ask("/readyz"))[:2] == (200, {"status": "ready"})
    guarded.health.set_fault(HealthPart.STORAGE, "/var/lib/secret is full")
    for authorization in ("", "Bearer wrong"):
        assert (await guarded.ask("/healthz", Authorization=authorization))[:2] == (503, {"status": "degraded"})
    status, told, _ = await guarded.ask("/healthz", Authorization=f"Bearer {TOKEN}")
    assert (status, told["faults"]) == (503, {"storage": "/var/lib/secret is full"})


async def test_paths_that_look_like_open_ones_are_not(guarded: Operators) -> None:
    for path in (
        "/healthz/",
        "//healthz",
        "/healthz/../metrics",
        "/HEALTHZ",
        "/healthz%2f..%2fmetrics",
        "/%6detrics",
        "/readyz;x",
        "/metrics?x=/healthz",
    ):
        assert (await guarded.ask(path))[0] in (401, 404), path
        assert "conclave_build" not in str((await guarded.ask(path))[1])


async def test_refusals_are_counted_without_who(guarded: Operators) -> None:
    for _ in range(3):
        await guarded.ask("/metrics")
    await guarded.ask("/metrics", Host="evil.example.org")
    _, text, _ = await guarded.ask("/metrics", Authorization=f"Bearer {TOKEN}")
    assert 'conclave_admin_refused_total{reason="token"} 3.0' in text
    assert 'conclave_admin_refused_total{reason="host"} 1.0' in text
    assert "evil" not in text


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9090", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:9090", "localhost."]
)
async def test_on_loopback_names_of_this_machine_are_answered(operators: Operators, host: str) -> None:
    assert (await operators.ask("/metrics", Host=host))[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example.org",
        "evil.example.org:9090",
        "localhost.evil.example.org",
        "127.0.0.1.evil.example.org",
        "0.0.0.0",
        "127.0.0.2",
        "[::]",
        "::1",
        "evil@localhost",
        "[::1].evil.example.org",
        "",
    ],
)
async def test_on_loopback_other_names_are_refused(operators: Operators, host: str) -> None:
    """A web page may have its own name resolved to loopback; its visitor's browser is on this machine."""
    for path in ("/metrics", "/healthz", "/readyz", "/nothing"):
        status, told, _ = await operators.ask(path, Host=host)
        assert (status, list(told)) == (421, ["message"])


async def test_a_name_that_is_set_is_answered(config: Config, start_server: StartServer) -> None:
    config = replace(config, admin=AdminConfig(hosts=("operators.example.org", "[fd00::1]")))
    async with start_server(config) as running, operating_beside(running) as operators:
        for host, status in (
            ("operators.example.org:80", 200),
            ("Operators.Example.org", 200),
            ("[FD00::1]", 200),
            ("localhost", 200),
            ("other.example.org", 421),
        ):
            assert (await operators.ask("/readyz", Host=host))[0] == status, host


async def test_beyond_loopback_the_token_protects_and_names_count_only_if_set(
    config: Config, start_server: StartServer
) -> None:
    """Nobody's browser has the token, and the addresses of 0.0.0.0 are not known."""
    away = AdminConfig(listen_address="0.0.0.0", token=TOKEN)
    for admin, host, status in (
        (away, "10.0.0.5:9090", 401),
        (replace(away, hosts=("a.example.org",)), "10.0.0.5:9090", 421),
        (replace(away, hosts=("a.example.org",)), "a.example.org", 401),
        (AdminConfig(listen_address="10.0.0.5", token=TOKEN, hosts=("a.example.org",)), "10.0.0.5", 401),
    ):
        async with start_server(replace(config, admin=admin)) as running, operating_beside(running) as operators:
            assert (await operators.ask("/metrics", Host=host))[0] == status


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.53", "::1", "localhost", "LocalHost"])
def test_loopback_needs_no_token(address: str) -> None:
    assert parse_config(f'[admin]\nlisten_address = "{address}"', "x").admin.is_on_loopback


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0", "::", "10.0.0.5", "fd00::1", "example.org", "localhost.example.org", "127.1", "::ffff:10.0.0.5"],
)
def test_an_address_that_others_reach_needs_a_token(address: str) -> None:
    """A name may mean any address."""
    text = f'[admin]\nlisten_address = "{address}"\n'
    with pytest.raises(ConfigError) as refused:
        parse_config(text, "x")
    [fault] = refused.value.faults
    assert fault.startswith(f'admin.listen_address: "{address}" is not loopback')
    assert "admin.token or admin.token_file" in fault
    for more in (f'token = "{TOKEN}"', 'token_file = "/a/token"'):
        assert parse_config(text + more, "x").admin.listen_address == address


@pytest.mark.parametrize("token", ["", "short", "a" * 31, "a" * 1025, "a" * 31 + " ", "a" * 32 + "\\n", "\u00e4" * 32])
def test_a_token_is_long_and_visible_and_no_error_repeats_it(token: str) -> None:
    with pytest.raises(ConfigError, match=r"admin\.token: must have 32 to 1024") as refused:
        parse_config(f'[admin]\ntoken = "{token}"', "x")
    assert len(token) < 5 or token not in str(refused.value)


@pytest.mark.parametrize("host", ["", "a b", "a.example.org:80", "http://a", "[fd00::1", "fd00::1", "*"])
def test_a_host_is_a_name_without_a_port(host: str) -> None:
    with pytest.raises(ConfigError, match=r"admin\.hosts\.1: must be a host name"):
        parse_config(f'[admin]\nhosts = ["{host}"]', "x")


def test_both_tokens_are_one_too_many() -> None:
    with pytest.raises(ConfigError, match=r"admin\.token and admin\.token_file: set one of them"):
        parse_config(f'[admin]\ntoken = "{TOKEN}"\ntoken_file = "t"', "x")


def test_the_token_is_not_shown_with_the_settings() -> None:
    config = parse_config(f'[admin]\ntoken = "{TOKEN}"', "x")
    assert TOKEN not in repr(config)
    assert Config.from_json(config.to_json()) == config


@pytest.mark.parametrize("written", [TOKEN, f"{TOKEN}\n", f"  {TOKEN}\r\n\n"])
async def test_a_token_may_be_in_a_file(
    tmp_path: Path, config: Config, start_server: StartServer, written: str
) -> None:
    file = tmp_path / "token"
    file.write_text(written)
    config = replace(config, admin=AdminConfig(token_file=str(file)))
    async with start_server(config) as running, operating_beside(running) as operators:
        assert (await operators.ask("/metrics"))[0] == 401
        assert (await operators.ask("/metrics", Authorization=f"Bearer {TOKEN}"))[0] == 200


@pytest.mark.parametrize(
    "held", [b"", b"short", b"\n", b"a" * 5000, b"two words that are long enough for it", b"\xff" * 40]
)
def test_a_file_without_a_token_is_refused_and_not_repeated(tmp_path: Path, held: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(held)
    with pytest.raises(TokenError) as refused:
        Guard(AdminConfig(token_file=str(file)))
    line = str(refused.value)
    assert line.startswith(f"admin.token_file: {file}: ")
    assert "\n" not in line
    assert "two words" not in line


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(TokenError, match=why):
            Guard(AdminConfig(token_file=str(path)))


async def test_odd_headers_are_refused_and_not_failed_on(guarded: Operators) -> None:
    with contextlib.closing(socket.create_connection(("127.0.0.1", guarded.server.port or 0))) as asking:
        asking.settimeout(5)
        asking.sendall(
            b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\xfe\r\nConnection: close\r\n\r\n"
        )
        import asyncio

        answer = await asyncio.to_thread(asking.recv, 65536)
    assert answer.startswith(b"HTTP/1.1 401 ")
