"""Each alert fires when it should and not otherwise, and the dashboard's expressions are valid, by promtool."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "conclave.rules.yml"
CASES = DEPLOY / "prometheus" / "conclave.rules.test.yml"
ALERTS = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]

with_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool, which prometheus has")


def promtool(*words: str | Path, cwd: Path | None = None) -> str:
    """Return what promtool says of what is wrong; nothing if all is well."""
    ran = subprocess.run(["promtool", *words], cwd=cwd, capture_output=True, text=True)
    assert bool(ran.returncode) == ("FAILED" in ran.stdout + ran.stderr), ran.stderr
    return ran.stdout + ran.stderr if ran.returncode else ""


def minutes(text: str) -> int:
    return sum(int(count) * {"h": 60, "m": 1}[unit] for count, unit in re.findall(r"(\d+)([hm])", text))


def when(alert: str) -> list[tuple[list[int], list[int]]]:
    """Return of each case at which minutes the alert fires, and at which it does not."""
    found = []
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        looked = [each for each in case.get("alert_rule_test", ()) if each["alertname"] == alert]
        fires = [minutes(each["eval_time"]) for each in looked if each.get("exp_alerts")]
        found.append((fires, [minutes(each["eval_time"]) for each in looked if not each.get("exp_alerts")]))
    return found


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_case_in_which_it_fires_and_had_not_before(alert: str) -> None:
    assert any(fires and silent and min(silent) < min(fires) for fires, silent in when(alert))


def test_cases_name_only_alerts_that_there_are() -> None:
    cases = yaml.safe_load(CASES.read_text())["tests"]
    assert {each["alertname"] for case in cases for each in case.get("alert_rule_test", ())} == set(ALERTS)
    names = [case["name"] for case in cases]
    assert len(names) == len(set(names))


@with_promtool
def test_the_alerts_fire_as_the_cases_say() -> None:
    assert promtool("check", "rules", RULES) == ""
    assert promtool("test", "rules", CASES.name, cwd=CASES.parent) == ""


def changed(folder: Path, change: dict[str, Any]) -> str:
    """Return what the cases say if every rule is otherwise."""
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.update(change)
    (folder / RULES.name).write_text(yaml.safe_dump(rules))
    shutil.copy(CASES, folder)
    return promtool("test", "rules", CASES.name, cwd=folder)


@with_promtool
@pytest.mark.parametrize("change", [{"expr": "vector(1) < 0"}, {"expr": "vector(1)", "for": "0s"}])
def test_the_cases_notice_an_alert_that_never_or_always_fires(tmp_path: Path, change: dict[str, Any]) -> None:
    said = changed(tmp_path, change)
    assert {alert for alert in ALERTS if f"alertname: {alert}," in said} == set(ALERTS)


@with_promtool
def test_servers_of_which_nothing_fires_notice_each_alert_that_does(tmp_path: Path) -> None:
    said = changed(tmp_path, {"expr": "vector(1)", "for": "0s"})
    looks = said.split("expr: ")[1:]
    assert len(looks) >= 4
    for look in looks:
        assert {alert for alert in ALERTS if f'{{alertname="{alert}", alertstate="firing"' in look} == set(ALERTS)


def panels() -> list[tuple[str, str]]:
    """Return the expressions of the dashboard, with something for what Grafana puts in."""
    board = json.loads((DEPLOY / "grafana" / "conclave.json").read_text())
    found = []
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "1m").replace("$job", "conclave")
            found.append((panel["title"], text.replace("$instance", ".*")))
    return found


@with_promtool
def test_the_expressions_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": text} for number, (_, text) in enumerate(panels())]
    assert len(rules) > 40
    assert [rule["expr"] for rule in rules if "$" in rule["expr"]] == []
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert promtool("check", "rules", file) == ""
    rules[7]["expr"] += ")"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert "panel:7" in promtool("check", "rules", file)
