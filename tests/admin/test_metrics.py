"""The metrics on the operators' listener: they say what health knows, and the docs name all of them."""

import re
from collections import Counter
from pathlib import Path

from aiohttp import ClientSession
from aiohttp.test_utils import TestServer
from prometheus_client.parser import text_string_to_metric_families

from conclave.admin.app import create_admin_app
from conclave.health.parts import Health, HealthPart
from conclave.store.overdue import Worst
from spark.report import Report

DOCS = Path(__file__).parents[2] / "docs" / "operations.md"


async def scrape(health: Health) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the samples by name, and by the values of their labels."""
    server = TestServer(create_admin_app(health))
    await server.start_server()
    try:
        async with ClientSession() as http, http.get(server.make_url("/metrics")) as response:
            assert response.status == 200
            assert response.headers["Content-Type"].startswith("text/plain; version=")
            families = list(text_string_to_metric_families(await response.text()))
    finally:
        await server.close()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


async def test_a_server_without_runs_and_faults_says_so() -> None:
    found = await scrape(Health())
    assert found["conclave_health_fault"] == {(part,): 0 for part in HealthPart}
    assert "conclave_cleanup_runs_total" not in found
    assert found["conclave_overdue_groups"] == found["conclave_overdue_seconds"] == {(): 0}


async def test_runs_faults_and_what_is_overdue_are_told() -> None:
    health = Health()
    health.fault(HealthPart.CLOCK, "why")
    health.overdue = Worst(3, 70)
    for job, error in (("everything", ""), ("everything", "disk"), ("over 3d", "")):
        report = Report("sql", 100, job, 107, Counter(expired=5, sessions=1), held=2, error=error)
        health.note_run(report.to_mapping())
    found = await scrape(health)
    assert found["conclave_health_fault"][HealthPart.CLOCK,] == 1
    assert sum(found["conclave_health_fault"].values()) == 1
    assert found["conclave_cleanup_runs_total"] == {
        ("everything", "ok"): 1,
        ("everything", "failed"): 1,
        ("over 3d", "ok"): 1,
    }
    deleted = found["conclave_cleanup_deleted_total"]
    assert (deleted["expired",], deleted["sessions",], deleted["invites",]) == (15, 3, 0)
    assert found["conclave_cleanup_last_end_timestamp_seconds"] == {("everything",): 107, ("over 3d",): 107}
    assert found["conclave_cleanup_last_duration_seconds"] == {("everything",): 7, ("over 3d",): 7}
    assert (found["conclave_overdue_groups"], found["conclave_overdue_seconds"]) == ({(): 3}, {(): 70})
    assert found["conclave_held_messages"] == {(): 2}


async def test_the_docs_name_every_metric() -> None:
    health = Health()
    health.note_run(Report("sql", 100, "everything", 107).to_mapping())
    section = DOCS.read_text().partition("### Metrics")[2].partition("\n## ")[0].partition("\n### ")[0]
    assert set(re.findall(r"^\| `(\w+)", section, re.MULTILINE)) == set(await scrape(health))
