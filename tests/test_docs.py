"""The docs say what the code does: settings, endpoints, error codes; conversations by curl are held."""

import ast
import json
import re
import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from conclave.cli.demo import expected
from conclave.cli.main import main
from conclave.config.load import parse_config
from conclave.config.retention import (
    LifetimeLimitsSchema,
    LifetimeRangeSchema,
    LifetimesSchema,
    PurgeJobSchema,
    RetentionSchema,
)
from conclave.config.settings import Config, setting_names
from conclave.config.warnings import find_warnings
from conclave.errors import ErrorCode
from conclave.health import background
from conclave.health.parts import HealthPart
from conclave.retention.rules import REPORTED
from conclave.server import duties
from conclave.server.routes import API, ROUTES
from conclave.store.engine import database
from conclave.store.resources.audit import AuditAction
from spark import hot_store
from tests.support.server import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "config.example.toml"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
ARCHITECTURE = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "architecture").glob("*.md"))
OPERATIONS = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "operations").glob("*.md"))

DEFAULTS_IN_WORDS = {
    "listen_port": f"`{Config().port}`; with TLS `{Config(tls_cert_path='c', tls_key_path='k').port}`",
    "data_path": f"`database_path` with the suffix `.data`, as in `{Config().data.name}`",
    "archive.path": f"`{Config().archive_path.name}` under `data_path`",
    "vault.path": f"`database_path` with the suffix `.vault`, as in `{Config().vault_path.name}`",
    "admin.token": "none",
    "admin.token_file": "none",
    "registration_token": "none",
    "retention.fetch_hold_limit": "none",
    "tls_cert_path": "none",
    "tls_key_path": "none",
}
"""The settings without a value of their own by default, and what the docs say instead."""


def doc(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def rows(page: str, first_cell: str) -> list[list[str]]:
    """Return the cells of the page's table rows whose first cell matches the pattern ``first_cell``."""
    split = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in page.splitlines() if line[:1] == "|")
    return [cells for cells in split if re.fullmatch(first_cell, cells[0])]


def example_settings() -> Iterator[tuple[str, str, bool]]:
    """Yield the settings of the example file: name, literal value, whether it is in force."""
    prefix = ""
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        if table := re.fullmatch(r"\[(\w+)\]", line):
            prefix = f"{table[1]}."
        elif setting := re.fullmatch(r"(# )?(\w+) = (.+)", line):
            yield prefix + setting[2], setting[3], not setting[1]


def test_the_example_configuration_is_the_defaults() -> None:
    assert parse_config(EXAMPLE.read_text(encoding="utf-8"), EXAMPLE.name) == Config()


def test_the_example_configuration_names_every_setting_once() -> None:
    names = [name for name, _, _ in example_settings()]
    assert sorted(names) == sorted(setting_names())


def test_the_example_configuration_comments_out_only_settings_without_a_default() -> None:
    assert {name for name, _, in_force in example_settings() if not in_force} == set(DEFAULTS_IN_WORDS)


@pytest.mark.parametrize("other", ["token", "token_file"])
def test_what_the_example_configuration_comments_out_is_valid(other: str) -> None:
    """But only one of two settings that stand for each other."""
    uncommented = re.sub(r"^# (\w+ = )", r"\1", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    uncommented = re.sub(rf"^{other} = .*\n", "", uncommented, count=1, flags=re.MULTILINE)
    assert len(tomllib.loads(uncommented)) == len(Config.__dataclass_fields__)
    parse_config(uncommented, EXAMPLE.name)


def test_the_table_of_settings_has_every_setting_and_its_default() -> None:
    documented = {cells[0].strip("`"): cells[1] for cells in rows(doc("docs/configuration.md"), r"`[a-z_.]+`")}
    in_force = {name: f"`{literal}`" for name, literal, in_force in example_settings() if in_force}
    assert documented == in_force | DEFAULTS_IN_WORDS


def test_the_settings_within_those_of_retention_are_documented() -> None:
    section = doc("docs/configuration.md").partition("\n### Retention\n")[2].partition("\n## ")[0]
    inner = {
        *LifetimesSchema().fields,
        *LifetimeRangeSchema().fields,
        *LifetimeLimitsSchema().fields,
        *PurgeJobSchema().fields,
    }
    others = RetentionSchema().fields.keys() - {name.rpartition(".")[2] for name in setting_names()}
    assert {name for name in inner | others if not re.search(rf"\b{name}\b", section)} == set()


def test_the_example_of_retention_is_valid_and_fits_the_page() -> None:
    section = doc("docs/configuration.md").partition("\n### Retention\n")[2].partition("\n## ")[0]
    [example] = re.findall(r"```toml\n(.*?)```", section, flags=re.DOTALL)
    assert not list(find_warnings(parse_config(example, "configuration.md")))


def test_the_table_of_endpoints_is_the_route_table() -> None:
    documented = [cells[0].strip("`") for cells in rows(doc("docs/protocol.md"), r"`[A-Z]+ /\S+`")]
    assert sorted(documented) == sorted(f"{route.method} {route.path}" for route in ROUTES)


def test_the_table_of_endpoints_marks_the_public_ones() -> None:
    documented = {cells[0].strip("`") for cells in rows(doc("docs/protocol.md"), r"`[A-Z]+ /\S+`") if cells[1] == "-"}
    assert documented == {f"{route.method} {route.path}" for route in ROUTES if route.public}


def test_the_table_of_errors_has_every_code() -> None:
    documented = [(int(cells[0]), cells[1]) for cells in rows(doc("docs/protocol.md"), r"\d+")]
    assert documented == [(code.value, f"`{code.name.lower()}`") for code in ErrorCode]


def test_the_table_of_health_has_every_part() -> None:
    health = doc("docs/operations/health.md").partition("\n## ")[0]
    assert sorted(cells[0].strip("`") for cells in rows(health, r"`[a-z_]+`")) == sorted(HealthPart)


def logged() -> dict[str, set[str]]:
    """Return the levels of each event that the code logs."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (each for top in ("conclave", "spark") for each in (ROOT / top).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="log"), attr=method), args=[ast.Constant(value=str(event)), *_]
                ):
                    found[event].add("error" if method == "exception" else method)
    return found


def test_the_table_of_log_events_has_every_event_and_its_levels() -> None:
    """A row with several events names the level of each, or the one that all have."""
    table: dict[str, set[str]] = {}
    for names, levels, _ in rows(doc("docs/operations/logs.md"), r"`\w+`.*"):
        events, of_each = re.findall(r"`(\w+)`", names), levels.split(", ")
        if len(events) == 1:
            table[events[0]] = set(of_each)
        else:
            assert len(of_each) in (1, len(events)), names
            table |= {event: {level} for event, level in zip(events, of_each * len(events), strict=False)}
    assert table == logged()


def test_the_table_of_the_audit_log_has_every_action() -> None:
    section = doc("docs/operations/evidence.md").partition("\n## The audit log\n")[2].partition("\n## ")[0]
    named = [name for cells in rows(section, r"`\w+`.*") for name in re.findall(r"`(\w+)`", cells[0])]
    assert sorted(named) == sorted(AuditAction)


def commands(group: click.Group, *words: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *words, name)
        else:
            yield " ".join((*words, name))


def test_every_command_is_told_to_operators() -> None:
    told = "\n".join([doc("docs/retention.md"), *map(doc, OPERATIONS)])
    missing = [name for name in commands(main) if not re.search(rf"\b{name}\b", told)]
    assert missing == []


def test_how_soon_a_failed_duty_is_tried_again_is_that_of_the_code() -> None:
    [told] = re.findall(r"(?m)^A duty that has failed is tried again.*$", doc("docs/operations/health.md"))
    assert set(re.findall(r"`([a-z_]+)`", told)) <= set(HealthPart)
    for words in ("within a second", "`archive` every 10 seconds", "`overdue` once a minute"):
        assert words in told
    within_a_second = (background.RETRY_SECONDS, database.CHECKPOINT_INTERVAL_SECONDS, duties.STORAGE_INTERVAL_SECONDS)
    assert max(within_a_second) <= 1
    assert (duties.ARCHIVE_RETRY_SECONDS, duties.OVERDUE_INTERVAL_SECONDS) == (10, 60)


def path_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'\b(?:src|href)="([^"]+)"', text)
    for link in links:
        if not re.match(r"[a-z]+:", link):
            assert_there(page, link)


def assert_there(page: Path, link: str) -> None:
    """Fail unless the file that a link of the page names is there, and the heading in it."""
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    assert target.is_file(), link
    assert not anchor or anchor in anchors(target), link


def headings(page: Path) -> list[str]:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)


def anchors(page: Path) -> set[str]:
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings(page)}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=path_of)
def test_no_two_sections_of_a_page_have_the_same_anchor(page: Path) -> None:
    """A link to it would lead to the first."""
    assert len(anchors(page)) == len(headings(page))


def test_what_code_and_files_name_of_the_docs_is_there() -> None:
    """Error texts, runbooks of alerts, units, comments: the page, and the section if one is named."""
    tops = ("bench", "conclave", "deploy", "proto", "scripts", "spark", "tests")
    files = [
        path for top in tops for path in (ROOT / top).rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    files += [ROOT / "Makefile", ROOT / "pyproject.toml", EXAMPLE, *PAGES]
    named = {
        (path_of(path), link)
        for path in files
        for link in re.findall(r"\bdocs/[\w/-]+\.md(?:#[\w-]+)?", path.read_text(encoding="utf-8", errors="replace"))
    }
    assert len({link for _, link in named if "#" in link}) > 10
    for path, link in sorted(named):
        name, _, anchor = link.partition("#")
        assert (ROOT / name).is_file(), f"{path} names {link}"
        assert not anchor or anchor in anchors(ROOT / name), f"{path} names {link}"


def test_the_entry_for_operators_fits_a_screen_and_leads_to_every_page() -> None:
    entry = doc("docs/operations.md")
    assert len(entry.splitlines()) <= 30
    linked = {f"docs/{name}" for name in re.findall(r"\]\((operations/[\w-]+\.md)", entry)}
    assert sorted(linked) == OPERATIONS


class Server:
    """A server process, as an operator starts it."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "conclave.toml"
        self.config.write_text(
            f'listen_address = "127.0.0.1"\nlisten_port = 0\ndatabase_path = "{folder / "conclave.db"}"\n'
            '[cleanup]\nengine = "sql"\n[admin]\nlisten_port = 0\n'
        )
        self.log = folder / "log"
        self.command = [sys.executable, "-P", "-m", "conclave"]

    def start(self) -> None:
        with self.log.open("w") as log:
            self.process = subprocess.Popen([*self.command, "serve", "--config", self.config], stderr=log, cwd=ROOT)

    def url(self) -> str:
        """Wait until the server listens, and return where."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self.process.poll() is None:
            for line in self.log.read_text().splitlines():
                if '"listening"' in line:
                    return str(json.loads(line)["url"])
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def converse(page: str, server: Server) -> list[str]:
    """Run the conversation of a page, and return the lines that it prints."""
    script = "\n".join(re.findall(r"^```bash\n(.*?)^```$", doc(page), flags=re.MULTILINE | re.DOTALL))
    calls = [line for line in script.splitlines() if "curl -" in line]
    assert calls
    assert all(re.search(r"--fail\b|--fail-with-body\b|\s-f\b", line) for line in calls)
    script = script.replace("http://localhost:8080", server.url()).replace(
        ".venv/bin/conclave cleanup run", f"{' '.join(server.command)} cleanup run --config {server.config}"
    )
    ran = subprocess.run(["bash", "-euo", "pipefail"], input=script, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()


def bodies(line: str) -> list[str]:
    return [message["mls_message"] for message in json.loads(line)["messages"]]


CONVERSATIONS = ("README.md", "docs/quickstart.md", "docs/protocol.md")


def test_the_readme_shows_what_the_demo_does() -> None:
    shown = rows(doc("README.md"), "keep|expiring|fetched|deleted")
    ends = {True: ["kept", "yes", "there"], False: ["gone", "no", "destroyed"]}
    assert shown == [[each.group, each.text, *ends[each.stays], each.why] for each in expected()]


def test_the_table_of_rules_is_that_of_the_code() -> None:
    reasons = doc("docs/operations/cleanup.md").partition("| in `deleted` |")[2].partition("\n\n")[0]
    assert [cells[0].strip("`") for cells in rows(reasons, r"`[a-z_]+`")] == list(REPORTED)


def test_the_length_of_transactions_is_that_of_the_code() -> None:
    told = (
        "transactions of about {0} ms, with a pause of at least {3} ms after each. While others write, transactions"
        " take {1} ms, and pauses {2} ms"
    )
    lengths = [hot_store.LOCK_BUDGET_SECONDS, hot_store.SHARED_BUDGET_SECONDS, hot_store.SHARED_REST_SECONDS]
    lengths.append(hot_store.LOCK_BUDGET_SECONDS * hot_store.ALONE_REST)
    assert told.format(*(f"{seconds * 1000:g}" for seconds in lengths)) in doc("docs/operations/cleanup.md")


def test_the_docs_for_contributors_name_things_where_they_are() -> None:
    """As in: `NAME` in `path/module.py`, or `NAME` of it."""
    pages = "\n".join(map(doc, ("docs/contributing.md", "docs/architecture.md", *ARCHITECTURE)))
    found = re.findall(r"`(\w+)` (?:in|of) `((?:conclave|spark|tests|bench)?/?[\w/]+\.py)`", pages)
    assert len(found) > 5
    for name, path in found:
        [module] = [each for top in ("", "conclave") if (each := ROOT / top / path).is_file()]
        assert name in {each.stem for each in module.parent.iterdir()} | names_of(module), f"{name} in {path}"


def names_of(module: Path) -> set[str]:
    """Return what a module defines or uses."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Name(id=name):
                found.add(name)
    return found


@dataclass
class Talk:
    """What the conversations printed, by page, and the endpoints that answered with a success."""

    printed: dict[str, list[str]]
    answered: set[tuple[str, str]]


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Talk:
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    try:
        printed = {page: converse(page, server) for page in CONVERSATIONS}
    finally:
        server.stop()  # from then on the log is complete
    logged = [json.loads(line) for line in server.log.read_text().splitlines()]
    successes = [line for line in logged if line.get("status", 0) < 400 and "route" in line]
    return Talk(printed, {(line["method"], line["route"]) for line in successes})


@pytest.mark.system
def test_the_conversation_of_the_readme_ends_with_the_message(talk: Talk) -> None:
    assert bodies(talk.printed["README.md"][-1]) == ["aGVsbG8="]


@pytest.mark.system
def test_the_conversation_of_the_quickstart_says_what_the_page_says(talk: Talk) -> None:
    printed = talk.printed["docs/quickstart.md"]
    fetched = [bodies(line) for line in printed if line.startswith('{"messages"')]
    expiring, read_by_all, late = "Z29uZSBpbiBhbiBob3Vy", "cmVhZCBieSBhbGw=", "Y2xlbyBpcyBsYXRl"
    assert fetched == [[expiring], [read_by_all, late], [read_by_all], [late], [late]]
    in_force = '"effective_expiry_seconds":3600,"min_lifetime_seconds":0,"policy_source":"group"'
    layers = '"server_retention_seconds":-1,"group_expiry_seconds":3600'
    rest = '"legal_hold":false,"held_by":[],"hidden_before":0,"taken_back":[]'
    setter = r'"expiry_set_by":"[0-9a-f-]{36}","more":false,"last_sequence_num":\d+'
    told = rf"\{{{re.escape(f'{layers},{in_force},{rest}')},{setter}\}}"
    assert any(re.fullmatch(told, line) for line in printed)
    assert '{"policies":{},"limits":{}}' in printed
    assert '{"messages_expiring":0,"oldest_expiring":0}' in printed
    assert re.search(r"fetched by all members\D+1 ", "\n".join(printed))
    assert [json.loads(line)["error_code"] for line in printed if '"error_code"' in line] == [400, 401, 101, 202]
    assert [line for line in printed if line.startswith("refused")] == [
        "refused: Cleo is not a member",
        "refused: Ben is no admin",
        "refused: a mistyped field",
        "refused: wrong password",
    ]


@pytest.mark.system
def test_the_conversation_of_the_protocol_says_what_the_page_says(talk: Talk) -> None:
    printed = talk.printed["docs/protocol.md"]
    heard = [line.removeprefix("event: ") for line in printed if line.startswith("event: ")]
    assert heard == ["invite_received", "welcome"]
    assert [line for line in printed if line.startswith("refused")] == [
        "refused: Quinn is banned",
        "refused: that session is over",
        "refused: there is no Pia any more",
    ]


@pytest.mark.system
def test_the_conversations_have_every_endpoint(talk: Talk) -> None:
    assert {(route.method, route.path) for route in ROUTES if route.path.startswith(API)} - talk.answered == set()


def test_the_tour_of_the_architecture_is_short_and_leads_to_every_note() -> None:
    tour = doc("docs/architecture.md")
    assert len(tour.split()) <= 2_200
    linked = {f"docs/{name}" for name in re.findall(r"\]\((architecture/[\w-]+\.md)\)", tour)}
    assert sorted(linked) == ARCHITECTURE
