"""The rooms of docs/architecture.md: each package is in the table, and imports go one way."""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Set as AbstractSet
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTES = ROOT / "docs" / "architecture"
GENERATED = {"conclave_pb2.py"}

OF_THE_SERVER_IN_SPARK = (
    *("conclave.actions.invites", "conclave.config", "conclave.retention", "conclave.store", "conclave.system"),
    *("conclave.clock", "conclave.failpoints", "conclave.logs", "conclave.errors"),
    *("conclave.archive.layout", "conclave.archive.snapshot", "conclave.archive.faults", "conclave.archive.files"),
    *("conclave.archive.integrity", "conclave.archive.scan"),
    "conclave.keys",
)
"""What cleanup may know of the server: its settings and its store, and where messages lie in the archive."""

PURE_OF_RETENTION = tuple(
    f"conclave.retention.{name}"
    for name in ("resolve", "policy", "former_policies", "jobs", "durations", "reasons", "advice")
)
"""What of retention asks no tables. Settings and the log know these, and stand below the rest of the room."""

PURE_FLOOR = ", pure"
"""What tells their floor from the rest of the room."""

PURE = (*PURE_OF_RETENTION, "conclave.clock.guard")
"""What is decided by values alone: no store, no clock, no file."""

DRAW_THE_CHAT = (
    "app",
    "bars",
    "composer",
    "dialogs",
    "forms",
    "help_text",
    "login",
    "palette",
    "rows",
    "screen",
    "sidebar",
    "terminal",
    "timeline",
)
"""The modules of the chat that know textual."""


def note(name: str) -> str:
    return (NOTES / f"{name}.md").read_text(encoding="utf-8")


@cache
def modules() -> dict[str, Path]:
    """Return the files of all modules by their names, packages too."""
    found = {}
    for top in ("conclave", "spark"):
        for path in (ROOT / top).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imported(module: str) -> frozenset[str]:
    """Return what ``module`` imports, anywhere in it but for types alone: modules of ours, and names of others."""
    tree = ast.parse(modules()[module].read_text(encoding="utf-8"))
    for_types = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and isinstance(branch.test, ast.Name) and branch.test.id == "TYPE_CHECKING"
        for child in branch.body
        for node in ast.walk(child)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules() else str(node.module) for name in names}
    return frozenset(found)


def is_within(module: str, *rooms: str) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def importers(target: str) -> set[str]:
    """Return the modules outside of ``target`` that import anything of it."""
    return {
        module
        for module in modules()
        if not is_within(module, target) and any(is_within(each, target) for each in imported(module))
    }


def room_of(module: str) -> str:
    """Return the package that a module is in, or the module itself where it is in none.

    The packages under conclave/ and spark/ are rooms; those of the store are, each by itself. The pure modules of
    retention are a floor of their own: the log and the settings stand on them, the store's engine on the log, and the
    rest of retention on the engine.
    """
    if is_within(module, *PURE_OF_RETENTION):
        return f"conclave.retention{PURE_FLOOR}"
    depth = 3 if is_within(module, "conclave.store") else 2
    room = ".".join(module.split(".")[:depth])
    return room if modules()[room].name == "__init__.py" else module


def in_a_circle(graph: Mapping[str, AbstractSet[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


TASKS_OF_THEIR_OWN = {
    "conclave.health.background": "it runs the duties",
    "conclave.server.supervise": "by keep_running of the above",
    "conclave.server.client_port.fast_path": "a request",
    "conclave.server.client_port.connection": "the time-outs of a connection",
    "conclave.server.client_port.port": "a connection that begins, and a pause of accepting",
    "conclave.server.client_port.responding": "a response",
    "conclave.wire.acknowledgement": "the end of an answer",
    "conclave.wire.handover": "an answer",
    "conclave.wire.stream_connection": "the end of a stream",
    "conclave.admin.page.snapshot": "a request for the page, which tells its error",
    "conclave.admin.sizes": "a request for the numbers, which tells its error",
    "conclave.store.engine.database": "checkpoints, by Health.duty; and who holds a stop up",
    "conclave.clock.timer_wheel": "it goes on after an error",
    "conclave.logs.setup": "once for each line that waits",
    "conclave.system.notify": "catches all errors; the service manager acts if nothing comes",
}
"""What may start a task or a timer by itself, and what it is: all else that repeats is a duty, which no error ends."""


def test_what_repeats_beside_requests_is_a_duty() -> None:
    found = set()
    for module, path in modules().items():
        if is_within(module, "conclave.client", "conclave.cli", "spark"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr in ("create_task", "call_later", "call_at"):
                found.add(module)
    assert found == TASKS_OF_THEIR_OWN.keys()


def test_only_the_command_line_imports_cleanup() -> None:
    assert {room_of(module) for module in importers("spark")} == {"conclave.cli"}


def test_only_the_server_imports_the_handlers() -> None:
    assert {room_of(module) for module in importers("conclave.api")} == {"conclave.server"}


def test_only_the_command_line_imports_the_proof() -> None:
    """Who erases does not prove it."""
    assert {room_of(module) for module in importers("conclave.proof")} == {"conclave.cli"}


def test_only_the_command_line_imports_backups() -> None:
    """And backups know of the server only its store and what the system is asked for."""
    assert {room_of(module) for module in importers("conclave.backup")} == {"conclave.cli"}
    known = ("actions", "archive", "backup", "clock", "config", "failpoints", "keys", "store", "system")
    of_server = {each for module in modules() if is_within(module, "conclave.backup") for each in imported(module)}
    of_server = {each for each in of_server if is_within(each, "conclave", "spark")} - {"conclave"}  # its version
    assert [each for each in of_server if not is_within(each, *(f"conclave.{room}" for room in known))] == []


def test_nothing_imports_the_command_line_but_the_programs() -> None:
    assert importers("conclave.cli") == {"conclave.__main__", "spark.job"}


@pytest.mark.parametrize("module", sorted(each for each in modules() if is_within(each, "conclave.api")))
def test_handlers_know_http_and_actions_but_no_store(module: str) -> None:
    assert not [each for each in imported(module) if is_within(each, "sqlite3", "conclave.store", "conclave.archive")]


def test_actions_refuse_and_announce_and_the_store_does_neither() -> None:
    """The engine hands both on, so it knows them; neither begins there."""
    below = [each for each in modules() if is_within(each, "conclave.store", "conclave.retention")]
    below = [each for each in below if not is_within(each, "conclave.store.engine")]
    assert {each for each in below if "conclave.errors" in imported(each)} == set()
    names = {"announce", "announce_stored", "end_streams", "announced"}
    trees = {each: ast.walk(ast.parse(modules()[each].read_text(encoding="utf-8"))) for each in below}
    announcing = {
        each.rpartition(".")[2]
        for each, nodes in trees.items()
        if any(
            (isinstance(node, ast.Name) and node.id in names)
            or (isinstance(node, ast.Attribute) and node.attr in names)
            for node in nodes
        )
    }
    assert announcing == set()


@pytest.mark.parametrize("module", sorted(each for each in modules() if is_within(each, "spark")))
def test_cleanup_knows_of_the_server_only_its_settings_and_its_store(module: str) -> None:
    allowed = ("conclave.cli",) if module == "spark.job" else OF_THE_SERVER_IN_SPARK
    of_server = [each for each in imported(module) if is_within(each, "conclave")]
    assert [each for each in of_server if not is_within(each, *allowed)] == []


@pytest.mark.parametrize("module", [each for each in sorted(modules()) if is_within(each, *PURE)])
def test_the_rules_of_retention_are_pure(module: str) -> None:
    known = (*PURE, "conclave.clock")
    assert [each for each in imported(module) if is_within(each, "conclave") and not is_within(each, *known)] == []
    assert not imported(module) & {"sqlite3", "time", "asyncio", "pathlib", "os"}


@pytest.mark.parametrize("module", sorted(each for each in modules() if is_within(each, "conclave.client")))
def test_the_client_library_knows_of_the_server_only_the_wire_formats(module: str) -> None:
    """And the chat how lifetimes are written."""
    of_wire = ("conclave_pb2", "events", "fields", "formats", "protobuf", "results", "schemas")
    known = (
        "conclave.client",
        "conclave.errors",
        "conclave.clock",
        "conclave.strict_fields",
        *(f"conclave.wire.{each}" for each in of_wire),
    )
    if is_within(module, "conclave.client.chat"):
        known = (*known, "conclave.retention.durations")
    assert [each for each in imported(module) if is_within(each, "conclave") and not is_within(each, *known)] == []


@pytest.mark.parametrize("module", sorted(each for each in modules() if is_within(each, "conclave.client.mls")))
def test_mls_knows_nothing_of_conclave(module: str) -> None:
    """It is a package of its own: below it are only the primitives of ``cryptography``, no file, network or clock."""
    of_others = {each for each in imported(module) if not is_within(each, "conclave.client.mls", "cryptography")}
    assert not {each for each in of_others if is_within(each, "conclave")}
    assert {each.partition(".")[0] for each in of_others} <= sys.stdlib_module_names
    assert not of_others & {"time", "datetime", "asyncio", "socket", "pathlib", "sqlite3", "random"}


@pytest.mark.parametrize("module", sorted(each for each in modules() if is_within(each, "conclave.client")))
def test_only_what_draws_the_chat_knows_the_terminal(module: str) -> None:
    """The library is for programs too, and what goes on in a chat can be tested without a screen."""
    if is_within(module, *(f"conclave.client.chat.{each}" for each in DRAW_THE_CHAT)):
        assert not [each for each in imported(module) if is_within(each, "click")]
    else:
        assert not [each for each in imported(module) if is_within(each, "textual", "rich", "click")]


def test_only_the_command_line_imports_the_chat() -> None:
    assert {room_of(module) for module in importers("conclave.client.chat")} == {"conclave.cli"}


def test_the_server_does_not_need_the_client_library() -> None:
    assert {room_of(module) for module in importers("conclave.client")} == {"conclave.cli"}


def test_keys_know_no_database_and_their_trees_no_file() -> None:
    """So that a plain model can be compared with them."""
    of_room = {module: imported(module) for module in modules() if is_within(module, "conclave.keys")}
    system = (f"conclave.system.{each}" for each in ("disk_timeout", "durable", "locks"))
    known = ("conclave.keys", "conclave.failpoints", *system)
    used = {each for names in of_room.values() for each in names if is_within(each, "conclave")}
    assert [each for each in used if not is_within(each, *known)] == []
    for pure in ("tree", "records"):
        assert not of_room[f"conclave.keys.{pure}"] & {"os", "pathlib", "secrets", "random", "threading", "time"}


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert in_a_circle({module: imported(module) & modules().keys() - {module} for module in modules()}) == []


def test_the_client_port_has_a_face_of_few_names() -> None:
    """And its modules form no circle, not even for types: none has imports only for these."""
    package = "conclave.server.client_port"
    own = {module for module in modules() if is_within(module, package)}
    assert not [module for module in own if "TYPE_CHECKING" in modules()[module].read_text(encoding="utf-8")]
    outside = {each for module in modules().keys() - own for each in imported(module) if is_within(each, package)}
    assert outside == {package}
    tree = ast.parse(modules()[package].read_text(encoding="utf-8"))
    names = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert len(names) <= 5


def test_no_rooms_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for module in modules():
        graph[room_of(module)] |= {room_of(each) for each in imported(module) & modules().keys()} - {room_of(module)}
    assert in_a_circle(graph) == []


def test_the_rooms_of_the_store_are_told_apart() -> None:
    rooms = {room_of(module) for module in modules() if is_within(module, "conclave.store")}
    assert {f"conclave.store.{each}" for each in ("engine", "resources", "views", "ledger", "archive")} <= rooms


def test_retention_knows_no_resource_and_no_view() -> None:
    """But for types: resources and views ask it, and it asks the tables."""
    known = ("conclave.retention", "conclave.store.engine", "conclave.store.bodies", "conclave.store.sender_index")
    of_room = {each for module in modules() if is_within(module, "conclave.retention") for each in imported(module)}
    of_store = {each for each in of_room if is_within(each, "conclave.store")}
    assert {each for each in of_store if not is_within(each, *known)} == set()


def test_few_modules_stand_in_no_room() -> None:
    loose = {path.stem for path in (ROOT / "conclave").glob("*.py")} - {"__init__"}
    named = {"__main__", "app_keys", "errors", "events", "failpoints", "measures", "response_memory", "strict_fields"}
    assert loose == named


def test_a_circle_would_be_noticed() -> None:
    assert set(in_a_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == {"b", "c"}


def test_the_tour_has_every_room_in_its_table() -> None:
    tour = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", tour.partition("\n## The rooms\n")[2], re.MULTILINE)
    rooms = {path.parent.name for path in (ROOT / "conclave").glob("*/__init__.py")} | {"spark"}
    assert {name for cell in cells for name in re.findall(r"\w+", cell)} == rooms


def test_the_pages_name_only_what_is_there() -> None:
    """Paths of code in the docs."""
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        for named in re.findall(r"`((?:conclave|spark|tests|bench|scripts|proto)/[\w/.-]*\w)`", text):
            assert (ROOT / named).exists(), f"{page.name} names {named}"


def test_a_resource_has_the_same_name_in_every_layer() -> None:
    """But for what has no transaction of its own: documents, health, the stream of events."""
    handlers = {path.stem for path in (ROOT / "conclave/api").glob("*.py")} - {"__init__", "docs", "health", "events"}
    actions = {path.stem for path in (ROOT / "conclave/actions").glob("*.py")}
    shared = {"action_runner"}
    assert handlers - actions - shared == set()


def test_every_package_is_installed() -> None:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert found["wheel"]["packages"] == ["conclave", "spark"]


def test_each_dependency_has_a_line() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    named = set(re.findall(r"`([a-z0-9-]+)`", note("dependencies")))
    assert {re.split(r"[\[<>=]", each)[0] for each in needed} - named == set()


def glossary() -> dict[str, str]:
    """Return what has the name of each term in the code."""
    found = re.findall(r"^\| \*\*(.+?)\*\* \| .+ \| `(.+?)` \|$", note("glossary"), re.MULTILINE)
    return dict(found)


@cache
def classes_of_the_server() -> dict[str, list[str]]:
    """Return where each class of the server and of cleanup is. The client is a program of its own."""
    found = defaultdict(list)
    for module, path in modules().items():
        if not is_within(module, "conclave.client") and path.name not in GENERATED:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(module)
    return found


def test_each_term_of_the_glossary_is_explained_once() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\* \|", note("glossary"), re.MULTILINE)
    assert terms == sorted(set(terms), key=str.casefold)
    assert terms == list(glossary())
    assert 40 <= len(terms) <= 50


@pytest.mark.parametrize(("term", "named"), glossary().items())
def test_a_term_of_the_glossary_names_one_thing(term: str, named: str) -> None:
    """A class, a module, a folder, or a name of the database; and no other class has the term's name."""
    files = [path.relative_to(ROOT) for path in modules().values()]
    if named.endswith("/"):
        assert any(named[:-1] in path.parts for path in files)
    elif named.endswith(".py"):
        assert any(path.name == named for path in files)
    elif named[0].isupper():
        assert len(classes_of_the_server()[named]) == 1, classes_of_the_server()[named]
    else:
        schema = (ROOT / "conclave/store/engine/schema.sql").read_text(encoding="utf-8")
        assert re.search(rf"\b{named}\b", schema)
    own = "".join(word.capitalize() for word in term.split())
    others = classes_of_the_server().get(own, [])
    assert len(others) <= 1, f"{term}: {others}"
    assert not (others and named[0].isupper()) or own == named, f"{term} is {named}, but {others} has a class {own}"
