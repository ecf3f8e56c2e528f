"""The metrics on the operators' listener: what they count, and that no label tells who."""

import asyncio
import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from aiohttp import ServerDisconnectedError

from conclave import app_keys
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.events import QUEUE_LIMIT, Event
from conclave.health.parts import HealthPart
from conclave.measures import CLIENT_CLOSED, Histogram
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError
from conclave.store.views.overdue import OverdueTotal
from spark.report import Report
from tests.admin.conftest import Operators, operating_beside
from tests.conftest import StartServer
from tests.support.client import API, RefusedError
from tests.support.listening import listening
from tests.support.server import until

DOCS = Path(__file__).parents[2] / "docs" / "operations" / "metrics.md"

MESSAGES = f"{API}/groups/{{group_id}}/messages"


async def test_a_server_without_runs_and_faults_says_so(operators: Operators) -> None:
    found = await operators.scrape()
    assert found["conclave_health_fault"] == {(part,): 0 for part in HealthPart}
    assert not found["conclave_cleanup_runs_total"]
    assert found["conclave_cleanup_last_success_timestamp_seconds"] == {("everything",): 0}
    assert found["conclave_overdue_groups"] == found["conclave_overdue_seconds"] == {(): 0}
    assert found["conclave_ready"] == {(): 1}


async def test_runs_faults_and_what_is_overdue_are_told(operators: Operators) -> None:
    health = operators.health
    health.set_fault(HealthPart.CLOCK, "why")
    health.overdue = OverdueTotal(3, 70)
    for job, error in (("everything", ""), ("everything", "disk"), ("over 3d", "")):
        report = Report("sql", 100, job, 107, Counter(expired=5, sessions=1), held=2, error=error)
        report.bytes_returned, report.archive_bytes_returned, report.archived = 4096, 10, 3
        health.record_run(report.to_mapping())
    found = await operators.scrape()
    assert found["conclave_health_fault"][HealthPart.CLOCK,] == 1
    assert sum(found["conclave_health_fault"].values()) == 1
    assert found["conclave_cleanup_runs_total"] == {
        ("ok", "everything"): 1,
        ("failed", "everything"): 1,
        ("ok", "over 3d"): 1,
    }
    deleted = found["conclave_cleanup_deleted_total"]
    assert (deleted["expired",], deleted["sessions",], deleted["invites",]) == (15, 3, 0)
    assert found["conclave_cleanup_returned_bytes_total"] == {("database",): 3 * 4096, ("archive",): 30}
    assert found["conclave_cleanup_archived_messages_total"] == {(): 9}
    assert found["conclave_cleanup_run_seconds_total"] == {("everything",): 14, ("over 3d",): 7}
    assert found["conclave_cleanup_last_end_timestamp_seconds"] == {("everything",): 107, ("over 3d",): 107}
    assert found["conclave_cleanup_last_duration_seconds"] == {("everything",): 7, ("over 3d",): 7}
    assert (found["conclave_overdue_groups"], found["conclave_overdue_seconds"]) == ({(): 3}, {(): 70})
    assert found["conclave_held_messages"] == {(): 2}


async def test_a_run_that_fails_is_no_success(operators: Operators) -> None:
    name = "conclave_cleanup_last_success_timestamp_seconds"
    operators.health.record_run(Report("sql", 100, finished_at=107).to_mapping())
    operators.health.record_run(Report("sql", 200, finished_at=207, error="disk").to_mapping())
    assert (await operators.scrape())[name] == {("everything",): 107}
    operators.health.record_run(Report("sql", 300, finished_at=307).to_mapping())
    assert (await operators.scrape())[name] == {("everything",): 307}


async def test_requests_are_counted_by_method_route_and_status(operators: Operators) -> None:
    running = operators.running
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    for _ in range(3):
        await alice.send(group)
    await alice.fetch(group)
    with pytest.raises(RefusedError) as refused:
        await bob.fetch(group)
    for _ in range(2):
        async with running.http.get(f"{running.url}/nothing/of/alice") as response:
            assert response.status == 404
    found = await operators.scrape()
    counted = found["conclave_requests_total"]
    assert counted["POST", MESSAGES, "200"] == 3
    assert (counted["GET", MESSAGES, "200"], counted["GET", MESSAGES, str(refused.value.status)]) == (1, 1)
    assert counted["GET", "unknown", "404"] == 2
    assert counted["POST", f"{API}/register", "201"] == 2
    took = found["conclave_request_duration_seconds_count"]
    assert (took["POST", MESSAGES], took["GET", MESSAGES]) == (3, 2)
    assert found["conclave_request_duration_seconds_sum"]["POST", MESSAGES] > 0
    assert found["conclave_request_duration_seconds_bucket"]["+Inf", "GET", MESSAGES] == 2


async def test_methods_that_nobody_needs_are_counted_as_one(operators: Operators) -> None:
    for method in ("PROPFIND", "MKCOL", "PURGE", "SUBSCRIBE"):
        async with operators.running.http.request(method, f"{operators.running.url}/healthz") as response:
            assert response.status == 405
    found = await operators.scrape()
    assert found["conclave_requests_total"] == {("other", "unknown", "405"): 4}


async def test_a_client_that_goes_is_counted(operators: Operators, monkeypatch: pytest.MonkeyPatch) -> None:
    alice = await operators.running.user("alice")
    group = await alice.create_group("friends")

    async def gone(*_: object) -> None:
        raise ConnectionResetError

    async def in_chunks() -> AsyncIterator[bytes]:
        yield b'{"mls_message": "aGVsbG8="}'

    monkeypatch.setattr(operators.running.app[app_keys.SENDING], "send", gone)
    headers = {"Authorization": f"Bearer {alice.token}", "Content-Type": "application/json"}
    with pytest.raises(ServerDisconnectedError):  # this client is still there
        await alice.http.post(f"{alice.url}{API}/groups/{group}/messages", data=in_chunks(), headers=headers)
    counted = (await operators.scrape())["conclave_requests_total"]
    assert counted["POST", MESSAGES, str(CLIENT_CLOSED)] == 1


async def test_transactions_are_counted_with_their_sizes_commits_and_waits(operators: Operators) -> None:
    alice = await operators.running.user("alice")
    group = await alice.create_group("friends")
    before = await operators.scrape()
    await asyncio.gather(*(alice.send(group) for _ in range(30)))
    after = await operators.scrape()

    def more(name: str) -> float:
        return sum(after[name].values()) - sum(before[name].values())

    transactions = more("conclave_write_transactions_total")
    assert transactions >= 1
    assert more("conclave_writes_per_transaction_sum") >= 30
    assert more("conclave_writes_per_transaction_count") == transactions
    assert more("conclave_commit_duration_seconds_count") == transactions
    assert more("conclave_write_lock_wait_seconds_count") == transactions
    assert after.one("conclave_commit_duration_seconds_sum") > 0
    assert after["conclave_write_transactions_total"]["failed",] == 0
    assert after.one("conclave_writes_waiting") == 0


async def test_the_time_that_another_process_holds_the_lock_is_told(operators: Operators) -> None:
    running = operators.running
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    before = (await operators.scrape()).one("conclave_write_lock_wait_seconds_sum")
    with contextlib.closing(sqlite.connect(running.config.database)) as other:
        other.execute("BEGIN IMMEDIATE")
        sending = asyncio.create_task(alice.send(group))
        await until(lambda: not running.app[app_keys.STORE]._writer.is_idle)
        await asyncio.sleep(0.3)
        assert not sending.done()
        other.execute("ROLLBACK")
    await sending
    assert (await operators.scrape()).one("conclave_write_lock_wait_seconds_sum") - before > 0.1


async def test_a_transaction_that_fails_is_counted_and_its_commit_is_not(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = operators.running.app[app_keys.STORE]
    before = await operators.scrape()

    def fail(*_: object) -> None:
        raise StoreError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr("conclave.store.engine.writer.run_singles", fail)
        with pytest.raises(StoreError):
            await store.write(lambda _: None)
    found = await operators.scrape()
    assert found["conclave_write_transactions_total"]["failed",] >= 1
    ok = found["conclave_write_transactions_total"]["ok",]
    assert found.one("conclave_commit_duration_seconds_count") == ok
    assert before["conclave_write_transactions_total"]["failed",] == 0


async def test_streams_are_counted_and_what_waits_for_them(operators: Operators) -> None:
    running = operators.running
    alice = await running.user("alice")
    events = running.app[app_keys.EVENTS]
    async with listening(alice):
        assert (await operators.scrape()).one("conclave_streams") == 1
        [stream] = next(iter(events._streams.values()))
        stream.pause_writing()  # type: ignore[attr-defined]  # it is a Listener
        for _ in range(QUEUE_LIMIT + 7):
            stream.put(Event("group_deleted", {"group_id": UUID(int=1).bytes}))
        found = await operators.scrape()
        assert found.one("conclave_stream_events_waiting") == QUEUE_LIMIT
        assert found.one("conclave_stream_events_waiting_max") == QUEUE_LIMIT
        stream.resume_writing()  # type: ignore[attr-defined]  # as above
        found = await operators.scrape()
        assert found.one("conclave_stream_events_waiting") == 0
        assert found.one("conclave_stream_events_dropped_total") == 7
    await until(lambda: not events.wheel.size)
    assert (await operators.scrape()).one("conclave_streams") == 0


async def test_what_holds_the_event_loop_up_is_told(operators: Operators) -> None:
    await asyncio.sleep(0.3)
    time.sleep(0.6)
    await asyncio.sleep(0.3)
    found = await operators.scrape()
    assert found.one("conclave_event_loop_lag_max_seconds") > 0.2
    assert found.one("conclave_event_loop_lag_seconds_sum") > 0.2


def test_a_bound_belongs_to_its_bucket() -> None:
    told = Histogram((1.0, 2.0))
    for value in (0.5, 1, 1.5, 2, 2.5):
        told.record(value)
    assert (told.counts, told.total) == ([2, 2, 1], 7.5)


async def test_no_label_has_a_name_an_id_or_an_address(config: Config, start_server: StartServer) -> None:
    override = {str(UUID(int=7)): {"max_lifetime": 60}}
    config = replace(config, retention=RetentionConfig.from_mapping({"groups": override}))
    async with start_server(config) as running, operating_beside(running) as operators:
        alice, bob = await running.users("alice_secret", "bob_secret")
        group = await alice.create_group("group_secret", expiry=60)
        async with listening(bob):
            await bob.join(group)
            await alice.send(group, b"body_secret")
            await bob.fetch(group)
        with pytest.raises(RefusedError):
            await bob.get("/users/carol_secret")
        with pytest.raises(RefusedError):
            await bob.get(f"/groups/{alice.user_id}/messages")
        for path in (f"/x/{group}", "/api/v1/docs/secret.js", "/..%2fsecret"):
            async with running.http.get(running.url + path) as response:
                await response.read()
        found = await operators.scrape()
        secrets = [alice.token, bob.token, alice.user_id, bob.user_id, group, "127.0.0.1", str(UUID(int=7))]
        for value in found.values():
            assert "secret" not in value
            assert not [each for each in secrets if each in value or each.replace("-", "") in value]
            assert not re.search(r"[0-9a-f]{8}", value), "an id"


async def test_two_scrapes_at_once_are_both_answered(operators: Operators) -> None:
    found = await asyncio.gather(*(operators.scrape() for _ in range(8)))
    assert {len(each.families) for each in found} == {len(found[0].families)}


def of_the_docs() -> dict[str, tuple[str, set[str]]]:
    """Return kind and labels of each metric in the table."""
    rows = re.findall(r"^\| (`.*?) \| (\w+) \| (.*?) ?\| ", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    words = [(re.findall(r"`(\w+)`", names), kind, set(re.findall(r"`(\w+)`", labels))) for names, kind, labels in rows]
    return {name: (kind, labels) for names, kind, labels in words for name in names}


async def test_the_docs_name_every_metric_with_its_kind_and_its_labels(operators: Operators) -> None:
    operators.running.config.archive_path.mkdir(parents=True)
    operators.running.app[app_keys.HEALTH].certificate_ends = 2_000_000_000
    operators.health.record_run(Report("sql", 100, "everything", 107).to_mapping())
    operators.health.worker = os.getpgid(0)
    await operators.running.user("alice")
    await operators.measured()
    operators.sizes.last = replace(operators.sizes.last, vault_copies={"/mnt/vault": ""})
    found = await operators.scrape()
    documented = of_the_docs()
    assert found.names() == documented.keys()
    assert found.kinds() == {name: kind for name, (kind, _) in documented.items()}
    assert found.labels() == {name: labels for name, (_, labels) in documented.items()}
