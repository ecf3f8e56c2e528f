"""The lines that the worker sends to the server."""

import pytest

from conclave.config.settings import Config
from conclave.system.worker_protocol import (
    Counted,
    Ended,
    Fault,
    Message,
    Order,
    State,
    from_line,
    order_line,
    order_of,
    to_line,
)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"ready": true}', State.READY),
        ('{"waiting": true}', State.WAITING),
        ('{"began": true}', State.BEGAN),
        ('{"counting": true}', State.COUNTING),
        ('{"counted": {"error": ""}, "due_in": 1.5}', Counted({"error": ""}, 1.5)),
        ('{"run": {"error": ""}, "due_in": 1.5}', Ended({"error": ""}, 1.5)),
        ('{"fault": "no Java"}', Fault("no Java")),
        ('{"fault": "no database", "due_in": -0.5}', Fault("no database", -0.5)),
    ],
)
def test_a_message_is_a_line(line: str, message: Message) -> None:
    assert to_line(message) == f"{line}\n"
    assert from_line(f"{line}\n".encode()) == message


@pytest.mark.parametrize(
    "line", ["", "Killed", "7", "[]", "{}", '{"ready": false}', '{"gone": true}', '{"run": {}}', '{"fault": 1}']
)
def test_any_other_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"no message|not a valid State|Expecting value"):
        from_line(f"{line}\n".encode())


@pytest.mark.parametrize("order", list(Order))
def test_an_order_is_a_line_that_no_settings_are(order: Order) -> None:
    assert order_of(order_line(order)) is order
    assert order_of(Config().to_json()) is None
