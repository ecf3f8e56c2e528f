"""What the log has, and how its lines look: for people, as JSON, with and without colours."""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict

import pytest

from conclave.config.log import LogConfig

PROGRAM = """
import asyncio, json, sys
from conclave.config.log import LogConfig
from conclave.logs.setup import configure_logging, get_logger, log_request
if json.loads(sys.argv[2]):
    sys.stderr.isatty = lambda: True
configure_logging(LogConfig(**json.loads(sys.argv[1])))
log = get_logger("conclave.test")
async def main():
    for status in (200, 404, 500):
        log_request("POST", "/api/v1/groups/{group_id}/messages", status, 0.0019, "ab" * 16)
    log.debug("cleanup_began")
    log.info("client_gone", method="GET", route="/api/v1/me")
    log.warning("too_many_connections", open_files=65536, path="a\\x1b[31m\\nb")
    try:
        password = "hush"
        raise ValueError("broken")
    except ValueError:
        log.exception("request_failed", method="GET")
    await asyncio.sleep(0.1)
asyncio.run(main())
"""


def written(config: LogConfig, *, terminal: bool = False, **variables: str) -> list[str]:
    """The lines that a process with this configuration writes."""
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")} | variables
    command = [sys.executable, "-c", PROGRAM, json.dumps(asdict(config)), json.dumps(terminal)]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=True).stderr.splitlines()


def test_lines_on_a_terminal_are_for_people() -> None:
    lines = [
        re.sub(r"^\d\d:\d\d:\d\d ", "", line)
        for line in written(LogConfig(requests="all"), terminal=True, NO_COLOR="1")
    ]
    assert lines[:6] == [
        "POST /groups/…/messages 200 1.9 ms",
        "POST /groups/…/messages 404 1.9 ms",
        "POST /groups/…/messages 500 1.9 ms",
        "client gone: method GET, route /api/v1/me",
        "warning: too many connections: open files 65,536, path a\\x1b[31m\\nb",
        "error: request failed: method GET",
    ]
    assert lines[6] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: broken"
    assert "hush" not in "".join(lines).replace('password = "hush"', "")


@pytest.mark.parametrize(
    ("config", "statuses"),
    [
        (LogConfig(format="console"), ["404", "500"]),
        (LogConfig(format="console", level="debug"), ["200", "404", "500"]),
        (LogConfig(format="json"), ["200", "404", "500"]),
        (LogConfig(format="json", level="warning"), []),
    ],
)
def test_people_read_of_requests_that_failed_and_programs_of_all(config: LogConfig, statuses: list[str]) -> None:
    lines = [line for line in written(config) if "POST" in line]
    assert [re.findall(r"\b(200|404|500)\b", line)[0] for line in lines] == statuses


def test_lines_elsewhere_are_json() -> None:
    lines = written(LogConfig())
    told = [json.loads(line) for line in lines]
    assert [each["event"] for each in told] == [
        *(["request"] * 3),
        *("client_gone", "too_many_connections", "request_failed"),
    ]
    when = r'"timestamp":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"}'
    assert re.fullmatch(
        r'{"method":"POST","route":"/api/v1/groups/{group_id}/messages","status":200,"ms":1.9,"event":"request",'
        rf'"request_id":"{"ab" * 16}","level":"info",{when}',
        lines[0],
    )
    assert re.fullmatch(
        r'{"method": "GET", "route": "/api/v1/me", "event": "client_gone", "level": "info", '
        + when.replace('"timestamp":', '"timestamp": '),
        lines[3],
    )
    assert told[-1]["exception"][0]["exc_value"] == "broken"


@pytest.mark.parametrize(
    ("config", "terminal", "variables", "is_json", "is_coloured"),
    [
        (LogConfig(), False, {}, True, False),
        (LogConfig(), True, {}, False, True),
        (LogConfig(), True, {"NO_COLOR": "1"}, False, False),
        (LogConfig(), True, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, False),
        (LogConfig(format="json"), True, {"FORCE_COLOR": "1"}, True, False),
        (LogConfig(format="console"), False, {}, False, False),
        (LogConfig(format="console"), False, {"FORCE_COLOR": "1"}, False, True),
    ],
)
def test_format_and_colours(
    config: LogConfig, terminal: bool, variables: dict[str, str], is_json: bool, is_coloured: bool
) -> None:
    lines = written(config, terminal=terminal, **variables)
    assert lines[0].startswith("{") == is_json
    assert any("\x1b[" in line for line in lines) == is_coloured


@pytest.mark.parametrize(
    ("config", "statuses", "others"),
    [
        (LogConfig(), [200, 404, 500], ["client_gone", "too_many_connections", "request_failed"]),
        (LogConfig(requests="errors"), [404, 500], ["client_gone", "too_many_connections", "request_failed"]),
        (LogConfig(requests="none"), [], ["client_gone", "too_many_connections", "request_failed"]),
        (
            LogConfig(level="debug", requests="none"),
            [],
            ["cleanup_began", "client_gone", "too_many_connections", "request_failed"],
        ),
        (LogConfig(level="warning"), [], ["too_many_connections", "request_failed"]),
        (LogConfig(level="error"), [], ["request_failed"]),
    ],
)
def test_level_and_requests(config: LogConfig, statuses: list[int], others: list[str]) -> None:
    told = [json.loads(line) for line in written(config)]
    assert [each["status"] for each in told if each["event"] == "request"] == statuses
    assert [each["event"] for each in told if each["event"] != "request"] == others
