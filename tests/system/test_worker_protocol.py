"""The lines that the worker tells the server, as docs/architecture.md has them."""

import pytest

from conclave.system.worker_protocol import Ended, Fault, Message, State, from_line, to_line


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"ready": true}', State.READY),
        ('{"waiting": true}', State.WAITING),
        ('{"began": true}', State.BEGAN),
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
