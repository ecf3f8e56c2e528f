"""The protocol between the cleanup worker and its server: lines of JSON.

The worker writes messages to its standard output. The server writes to the worker's standard input: the settings, the
settings again when the log level has changed, and orders. If that input ends, the server has ended. If
the next run is far off, the worker exits. The next worker is started with the remaining schedule.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

EXIT_NO_RESTART = 78
"""The worker's exit status if a restart would not help (EX_CONFIG)."""


class WorkerOrder(StrEnum):
    """An operator's order to the worker: run each of its jobs now, or do a dry run over everything."""

    RUN = "run"
    COUNT = "count"


class WorkerState(StrEnum):
    """The state of the worker.

    READY: ready for runs. PREPARING: prepares the next run, and starts Java if the engine is Spark. WAITING: waits for
    another process's run. BEGAN: in a run. COUNTING: in a dry run.
    """

    READY = "ready"
    PREPARING = "preparing"
    WAITING = "waiting"
    BEGAN = "began"
    COUNTING = "counting"


@dataclass(frozen=True)
class RunEnded:
    """A run has ended."""

    report: dict[str, Any]
    """The fields of the log line."""
    due_in: float
    """Seconds until the next run."""


@dataclass(frozen=True)
class DryRunEnded:
    """A dry run has ended. The fields are those of RunEnded."""

    report: dict[str, Any]
    due_in: float


@dataclass(frozen=True)
class WorkerFault:
    """Cleanup does not work. ``reason``: one line for the operator."""

    reason: str
    due_in: float | None = None
    """Seconds until the next try; None if this process does not try again."""


@dataclass(frozen=True)
class JavaStarted:
    """Java was started, which took ``seconds``."""

    seconds: float
    due_in: float
    """Seconds until the run for which it was started."""


@dataclass(frozen=True)
class OrderAccepted:
    """The worker is carrying out an order, or will do so next."""

    order: WorkerOrder


@dataclass(frozen=True)
class WorkerIdle:
    """The worker exits, with its Java process, and has to be started again for its next job, or for an order.

    ``due``: the seconds until each job of the schedule is due, in the order of the schedule.
    """

    due: tuple[float, ...]

    @property
    def due_in(self) -> float:
        """Seconds until the next run."""
        return min(self.due)

    def later(self, seconds: float) -> "WorkerIdle":
        """Return the same schedule, but ``seconds`` later."""
        return WorkerIdle(tuple(each - seconds for each in self.due))


WorkerMessage = WorkerState | JavaStarted | RunEnded | DryRunEnded | OrderAccepted | WorkerIdle | WorkerFault


def encode_idle(idle: WorkerIdle, now: float) -> str:
    """Return the command-line argument of the next worker.

    ``now``: seconds of the monotonic clock, which all processes of a machine share. So the start of
    the worker does not delay runs.
    """
    return json.dumps(idle.later(-now).due)


def decode_idle(text: str, now: float) -> WorkerIdle:
    """Parse the output of ``encode_idle``. The result is relative to ``now``. Raises ValueError."""
    return WorkerIdle(tuple(map(float, json.loads(text)))).later(now)


def encode_order(order: WorkerOrder) -> str:
    """Return an order as a line, with its line end. Orders are JSON strings, settings are JSON objects."""
    return json.dumps(order) + "\n"


def decode_order(line: str) -> WorkerOrder | None:
    """Return the order in a line for the worker; None if the line has settings. Raises ValueError."""
    message = json.loads(line)
    return WorkerOrder(message) if isinstance(message, str) else None


def encode_message(message: WorkerMessage) -> str:
    """Return a message as a line, with its line end."""
    return json.dumps(_mapping(message)) + "\n"


def decode_message(line: bytes) -> WorkerMessage:
    """Parse a line. Raises ValueError if it is not a message."""
    message = json.loads(line)
    match message:
        case {"fault": str(reason), "due_in": float(due_in) | int(due_in)}:
            return WorkerFault(reason, due_in)
        case {"fault": str(reason)}:
            return WorkerFault(reason)
        case {"run": dict(report), "due_in": float(due_in) | int(due_in)}:
            return RunEnded(report, due_in)
        case {"counted": dict(report), "due_in": float(due_in) | int(due_in)}:
            return DryRunEnded(report, due_in)
        case {"warm": float(seconds) | int(seconds), "due_in": float(due_in) | int(due_in)}:
            return JavaStarted(seconds, due_in)
        case {"taken": str(order)}:
            return OrderAccepted(WorkerOrder(order))
        case {"asleep": [_, *_] as due} if all(isinstance(each, float | int) for each in due):
            return WorkerIdle(tuple(due))
        case dict() if list(message.values()) == [True]:
            return WorkerState(next(iter(message)))
    raise ValueError(f"not a message: {line[:100]!r}")


def _mapping(message: WorkerMessage) -> dict[str, Any]:
    match message:
        case JavaStarted():
            return {"warm": message.seconds, "due_in": message.due_in}
        case OrderAccepted():
            return {"taken": message.order}
        case WorkerIdle():
            return {"asleep": message.due}
        case WorkerState():
            return {message: True}
        case RunEnded():
            return {"run": message.report, "due_in": message.due_in}
        case DryRunEnded():
            return {"counted": message.report, "due_in": message.due_in}
        case WorkerFault(due_in=None):
            return {"fault": message.reason}
        case WorkerFault():
            return {"fault": message.reason, "due_in": message.due_in}
