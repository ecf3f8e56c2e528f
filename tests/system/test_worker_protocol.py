"""The lines that the worker sends to the server."""

import pytest

from conclave.config.settings import Config
from conclave.system.worker_protocol import (
    DryRunEnded,
    RunEnded,
    WorkerFault,
    WorkerMessage,
    WorkerOrder,
    WorkerState,
    decode_message,
    decode_order,
    encode_message,
    encode_order,
)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"ready": true}', WorkerState.READY),
        ('{"waiting": true}', WorkerState.WAITING),
        ('{"began": true}', WorkerState.BEGAN),
        ('{"counting": true}', WorkerState.COUNTING),
        ('{"counted": {"error": ""}, "due_in": 1.5}', DryRunEnded({"error": ""}, 1.5)),
        ('{"run": {"error": ""}, "due_in": 1.5}', RunEnded({"error": ""}, 1.5)),
        ('{"fault": "no Java"}', WorkerFault("no Java")),
        ('{"fault": "no database", "due_in": -0.5}', WorkerFault("no database", -0.5)),
    ],
)
def test_a_message_is_a_line(line: str, message: WorkerMessage) -> None:
    assert encode_message(message) == f"{line}\n"
    assert decode_message(f"{line}\n".encode()) == message


@pytest.mark.parametrize(
    "line", ["", "Killed", "7", "[]", "{}", '{"ready": false}', '{"gone": true}', '{"run": {}}', '{"fault": 1}']
)
def test_any_other_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"not a message|not a valid WorkerState|Expecting value"):
        decode_message(f"{line}\n".encode())


@pytest.mark.parametrize("order", list(WorkerOrder))
def test_an_order_is_a_line_that_no_settings_are(order: WorkerOrder) -> None:
    assert decode_order(encode_order(order)) is order
    assert decode_order(Config().to_json()) is None
