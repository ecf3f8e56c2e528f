"""The alerts and the dashboard ask only for what a server tells, and the docs say what to do."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from conclave import app_keys
from conclave.health.parts import HealthPart
from conclave.measures import CLIENT_CLOSED
from spark.report import Report
from tests.admin.conftest import Operators
from tests.support.scrape import Samples
from tests.test_docs import anchors

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "deploy/prometheus/conclave.rules.yml").read_text(encoding="utf-8"))
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
BOARD = json.loads((ROOT / "deploy/grafana/conclave.json").read_text(encoding="utf-8"))
OPERATIONS = ROOT / "docs" / "operations"

OF_PROMETHEUS = {"up"}
"""What Prometheus itself says of what it asks."""

TARGET = {"job", "instance"}
"""The labels that Prometheus adds to every sample."""

WORDS = frozenset(("and", "or", "unless"))
FUNCTIONS = frozenset(
    ("sum", "min", "max", "topk", "rate", "increase", "absent", "time", "histogram_quantile", "predict_linear")
)

BRACES = r"\{(?:[^\"}]|\"[^\"]*\")*\}"


@dataclass
class Asked:
    """A metric in an expression, and what its labels have to be."""

    name: str
    matchers: list[tuple[str, str, str]]


def of(expression: str) -> tuple[list[Asked], set[str]]:
    """Return the metrics of an expression, and the labels that it groups by; a word that is unknown fails."""
    text = re.sub(r"\[[^\]]*\]", "", expression)
    grouped: set[str] = set()

    def group(found: re.Match[str]) -> str:
        grouped.update(re.findall(r"\w+", found[1]))
        return " "

    text = re.sub(r"\b(?:by|on)\s*\(([^)]*)\)", group, re.sub(r"\boffset \w+", "", text))
    asked = []
    for name, called, labels in re.findall(rf"(?<![\w.$\"])([A-Za-z_]\w*)(\s*\()?({BRACES})?", text):
        if called or name in WORDS:
            assert name in WORDS | FUNCTIONS, f"{name} in {expression}"
            continue
        matchers = re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', labels)
        assert len(matchers) == len(re.findall(r'"[^"]*"', labels)), expression
        asked.append(Asked(name, matchers))
    return asked, grouped


def expressions() -> Iterator[tuple[str, str]]:
    for rule in ALERTS:
        yield rule["alert"], rule["expr"]
    for panel in BOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


@pytest.fixture
async def told(operators: Operators) -> Samples:
    """What a server tells after some traffic, a run, and with an archive and a worker."""
    running = operators.running
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    await alice.send(group)
    await alice.fetch(group)
    running.config.archive_path.mkdir(parents=True)
    running.app[app_keys.HEALTH].certificate_ends = 2_000_000_000
    operators.health.record_run(Report("sql", 100, finished_at=107).to_mapping())
    operators.health.worker = os.getpgid(0)
    await operators.measured()
    return await operators.scrape()


async def test_what_alerts_and_panels_ask_for_is_there(told: Samples) -> None:
    labels = told.labels_by_sample()
    values = told.values_by_label()
    values["status"] |= {"500", "503", "507", str(CLIENT_CLOSED)}
    values["part"] |= {*HealthPart}
    seen = set()
    for where, expression in expressions():
        asked, grouped = of(expression)
        assert asked, where
        for each in asked:
            seen.add(each.name)
            assert each.name in labels.keys() | OF_PROMETHEUS, f"{where}: nobody tells {each.name}"
            known = labels.get(each.name, set()) | TARGET
            for label, _, wanted in each.matchers:
                assert label in known, f"{where}: {each.name} has no label {label}"
                if label not in TARGET:
                    pattern = re.compile(wanted)
                    assert wanted in values[label] or any(map(pattern.fullmatch, values[label])), f"{where}: {wanted}"
                    for part in wanted.split("|") if label == "part" else ():
                        assert part in values["part"], f"{where}: {part}"
        of_all = set().union(*(labels.get(each.name, set()) for each in asked)) | TARGET
        assert grouped <= of_all, f"{where}: groups by {grouped - of_all}"
    ours = {name for name in told.names() if name.startswith("conclave_")}
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in seen} | seen
    assert ours <= shown, "what nobody looks at need not be told"


async def test_what_the_texts_name_is_left_by_the_expression(told: Samples) -> None:
    """A label that an aggregation drops would be empty in the text."""
    labels = told.labels_by_sample()
    texts = [(rule["alert"], rule["annotations"]["summary"], rule["expr"]) for rule in ALERTS]
    for panel in BOARD["panels"]:
        texts += [(panel["title"], each["legendFormat"], each["expr"]) for each in panel.get("targets", ())]
    for where, text, expression in texts:
        named = set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text))
        asked, grouped = of(expression)
        left = set().union(*(labels.get(each.name, set()) for each in asked)) | TARGET
        if re.match(r"(topk\(\d+, )?(sum|min|max|histogram_quantile)\b", expression):
            left = grouped
        assert named <= left, f"{where}: {named - left}"


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_names_a_section_of_the_docs(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert (ROOT / page).is_file()
    assert anchor in anchors(ROOT / page)
    assert re.fullmatch(r"Conclave[A-Za-z]+", rule["alert"])
    assert rule["annotations"]["summary"].endswith(".")
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))


def test_the_table_of_alerts_has_every_alert_its_severity_and_its_section() -> None:
    page = (OPERATIONS / "alerts.md").read_text(encoding="utf-8")
    table = {}
    for name, severity, advice in re.findall(r"^\| `(Conclave\w+)` \| (\w+) \| .*? \| (.*) \|$", page, re.MULTILINE):
        table[name] = severity, set(re.findall(r"\]\(([\w-]+\.md#[\w-]+)\)", advice))
    assert list(table) == [rule["alert"] for rule in ALERTS]
    for rule in ALERTS:
        severity, links = table[rule["alert"]]
        assert rule["labels"]["severity"] == severity
        assert rule["annotations"]["runbook"] in {f"docs/operations/{link}" for link in links}


def test_the_example_of_a_scrape_is_valid() -> None:
    page = (OPERATIONS / "metrics.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    [job] = yaml.safe_load(example)["scrape_configs"]
    assert job["job_name"] == "conclave", "the name that ConclaveDown asks for"


def test_the_dashboard_has_its_panels_in_rows_that_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, panel["title"]
                taken.add((x, y))
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert {each["name"] for each in BOARD["templating"]["list"]} == {"datasource", "job", "instance"}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("conclave_x > 1", ["conclave_x"]),
        ('rate(a_b{c="d{e}f"}[5m]) and on (job) x', ["a_b", "x"]),
        ("sum by (a, b) (increase(c[1h])) / 2 unless c offset 15m", ["c", "c"]),
    ],
)
def test_expressions_are_read(expression: str, expected: list[str]) -> None:
    assert [each.name for each in of(expression)[0]] == expected


def test_a_function_that_is_misspelt_is_noticed() -> None:
    with pytest.raises(AssertionError, match="rat in"):
        of("rat(conclave_x[5m])")
