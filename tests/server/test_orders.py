"""What the server has its worker do at once: each order is done once, and everybody who asks gets an answer."""

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from conclave.config.settings import Config
from conclave.health.parts import Health
from conclave.server.supervise import Supervisor
from conclave.system.worker_protocol import (
    DryRunEnded,
    RunEnded,
    WorkerFault,
    WorkerMessage,
    WorkerOrder,
    WorkerState,
    decode_order,
)
from spark.report import Report
from spark.worker import Orders

LONG = 3600.0


def test_an_order_is_found_once_also_if_it_was_given_before() -> None:
    orders = Orders()
    assert orders.wait(0) is None
    for order in WorkerOrder:
        orders.add(order)
        orders.add(order)
        assert orders.wait(LONG) is order
        assert orders.wait(0) is None


def test_two_orders_are_both_found() -> None:
    orders = Orders()
    for order in WorkerOrder:
        orders.add(order)
    assert {orders.wait(LONG), orders.wait(LONG)} == set(WorkerOrder)
    assert orders.wait(0) is None


def test_an_order_wakes_who_waits() -> None:
    orders = Orders()
    threading.Timer(0.05, orders.add, [WorkerOrder.COUNT]).start()
    assert orders.wait(LONG) is WorkerOrder.COUNT


class Pipe:
    """The input of a worker that never reads it."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, line: bytes) -> None:
        self.lines.append(line)

    def is_closing(self) -> bool:
        return False


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


@pytest.fixture
def supervisor(pipe: Pipe) -> Supervisor:
    made = Supervisor(Config(), Health())
    made._process = cast(Any, SimpleNamespace(stdin=pipe))
    return made


async def test_without_a_worker_nothing_is_done() -> None:
    supervisor = Supervisor(Config(), Health())
    assert supervisor.run_now() is False
    assert await supervisor.count() is None


async def test_all_who_ask_at_once_get_the_same_count(supervisor: Supervisor, pipe: Pipe) -> None:
    asking = [asyncio.create_task(supervisor.count()) for _ in range(3)]
    await asyncio.sleep(0)
    assert [decode_order(line.decode()) for line in pipe.lines] == [WorkerOrder.COUNT]
    asking[0].cancel()
    await asyncio.sleep(0)
    supervisor._handle(DryRunEnded({"error": "", "held": 4}, 5.0))
    assert [await each for each in asking[1:]] == [{"error": "", "held": 4}] * 2
    again = asyncio.create_task(supervisor.count())
    await asyncio.sleep(0)
    assert len(pipe.lines) == 2, "who asks later gets another count"
    supervisor._resolve_report({"error": "the cleanup worker ended meanwhile"})
    assert await again == {"error": "the cleanup worker ended meanwhile"}


async def test_a_count_that_nobody_waits_for_any_more_is_let_go(supervisor: Supervisor) -> None:
    asking = asyncio.create_task(supervisor.count())
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.sleep(0)
    supervisor._handle(DryRunEnded({"error": ""}, 5.0))
    supervisor._handle(DryRunEnded({"error": ""}, 5.0))


@pytest.mark.parametrize(
    ("told", "is_in_run", "due_in"),
    [
        (WorkerState.READY, False, None),
        (WorkerState.BEGAN, True, None),
        (WorkerState.COUNTING, False, None),
        (RunEnded(Report("sql", 1, finished_at=2).to_mapping(), 60.0), False, 60.0),
        (DryRunEnded({"error": ""}, 7.0), False, 7.0),
        (WorkerFault("no database", 30.0), False, 30.0),
        (WorkerFault("no Java"), False, None),
    ],
)
def test_health_knows_of_the_run_and_of_the_next(
    supervisor: Supervisor, told: WorkerMessage, is_in_run: bool, due_in: float | None
) -> None:
    before = time.time()
    supervisor._handle(told)
    health = supervisor._health
    assert health.is_in_run is is_in_run
    if due_in is None:
        assert health.next_run_at is None
    else:
        assert health.next_run_at is not None
        assert before + due_in <= health.next_run_at <= time.time() + due_in


@pytest.mark.parametrize("told", [WorkerState.BEGAN, WorkerState.WAITING, WorkerState.COUNTING])
def test_work_may_take_as_long_as_a_run(supervisor: Supervisor, told: WorkerState) -> None:
    assert supervisor._timeout_after(told) > Config().cleanup.max_run_time
