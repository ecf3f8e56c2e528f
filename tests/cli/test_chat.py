"""What is wrong with a start of the chat is said in a line, before there is a screen."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from conclave.cli import chat as module
from conclave.cli.main import main
from conclave.client import PlaintextCodec
from conclave.client.chat.app import ChatApp
from conclave.client.chat.login import server_url
from conclave.client.chat.options import ChatOptions


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ([], "conclave chat needs a terminal; for programs, use conclave.client, see docs/client.md"),
        (["["], "[ is not a valid address; expected one such as chat.example.org"),
        (["http://x:port"], "http://x:port is not a valid address; expected one such as chat.example.org"),
        (
            ["--keep-fetched", "soon"],
            "soon is not a duration: write a number and a unit (s, min, h, d, w, mo, y), such as 1h",
        ),
        (["--codec", "nothing.there:Codec"], "nothing.there:Codec: No module named 'nothing'; write MODULE:NAME"),
        (["--codec", "conclave.client"], "write MODULE:NAME"),
        (["--codec", ":Codec"], "write MODULE:NAME"),
        (["--codec", "conclave.client:NoCodec"], "has no attribute 'NoCodec'; write MODULE:NAME"),
        (["--ca", "nowhere.pem"], "'nowhere.pem' does not exist"),
        (["--password", "secret"], "No such option"),
        (["one", "two"], "unexpected extra argument"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(arguments: list[str], wrong: str) -> None:
    done = CliRunner().invoke(main, ["chat", *arguments])
    assert done.exit_code in (1, 2)
    assert wrong in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("chat.example.org", "https://chat.example.org"),
        (" Chat.Example.org/ ", "https://chat.example.org"),
        ("chat.example.org:8443/talk", "https://chat.example.org:8443/talk"),
        ("http://chat.example.org", "http://chat.example.org"),
        ("localhost:8080", "http://localhost:8080"),
        ("127.0.0.1", "http://127.0.0.1"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("localhost.example.org", "https://localhost.example.org"),
    ],
)
def test_an_address_is_taken_as_it_is_meant(typed: str, url: str) -> None:
    assert server_url(typed) == url


def test_what_a_start_is_told_reaches_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[ChatOptions] = []

    async def run(app: ChatApp) -> str:
        begun.append(app._options)
        return "" if len(begun) == 1 else "the line that it ends with"

    monkeypatch.setattr(ChatApp, "run_async", run)
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    authorities = tmp_path / "ca.pem"
    authorities.touch()
    arguments = [
        *("Chat.Example.org", "--user", "alice", "--ca", str(authorities), "--auth-header", "X-Token"),
        *("--home", str(tmp_path / "home"), "--in-memory", "--keep-fetched", "1 day", "--plain"),
        *("--codec", "conclave.client:PlaintextCodec"),
    ]
    module.chat.main(arguments, standalone_mode=False)
    assert begun[0] == ChatOptions(
        url="https://chat.example.org",
        username="alice",
        ca=authorities,
        auth_header="X-Token",
        home=tmp_path / "home",
        keeps_history=False,
        keep_fetched=86_400,
        is_plain=True,
        make_codec=PlaintextCodec,  # type: ignore[arg-type]  # it takes nothing, and is not called here
    )
    with pytest.raises(Exception, match="the line that it ends with"):
        module.chat.main([], standalone_mode=False)
    assert begun[1] == ChatOptions()
    with pytest.raises(Exception, match="the line that it ends with"):
        module.chat.main(["--plaintext"], standalone_mode=False)
    assert begun[2] == ChatOptions(make_codec=None)
    with pytest.raises(Exception, match="exclude each other"):
        module.chat.main(["--plaintext", "--codec", "conclave.client:PlaintextCodec"], standalone_mode=False)
