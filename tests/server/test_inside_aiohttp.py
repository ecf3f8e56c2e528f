"""What the way in uses of the inside of aiohttp: all of it is listed here, and is still there."""

import ast
from pathlib import Path
from types import ModuleType

import pytest
from aiohttp import web

from conclave.server import connection, listen

OF_A_CONNECTION = {
    *("_close", "_current_request", "_drain_helper", "_force_close", "_handler_waiter", "_keepalive_timeout", "_loop"),
    *("_manager", "_max_msg_queue_size", "_messages", "_msg_queue_resume_size", "_next_keepalive_close_time"),
    *("_pause_transport_reading", "_request_count", "_request_factory", "_request_in_progress"),
    *("_resume_transport_reading", "_task_handler", "_upgraded", "_waiter"),
}
OF_A_SITE = {"_backlog", "_runner", "_server", "_ssl_context"}


@pytest.mark.parametrize(
    ("module", "built_on", "listed"),
    [(connection, web.RequestHandler, OF_A_CONNECTION), (listen, web.BaseSite, OF_A_SITE)],
    ids=["connections", "sites"],
)
def test_exactly_what_is_listed_is_used_and_is_there(module: ModuleType, built_on: type, listed: set[str]) -> None:
    assert module.__file__
    names = {
        each.attr for each in ast.walk(ast.parse(Path(module.__file__).read_text())) if type(each) is ast.Attribute
    }
    private = {each for each in names if each.startswith("_") and not each.startswith("__")}
    assert {each for each in private if hasattr(built_on, each)} == listed
