"""What hides a message and lets it go is decided in the room of retention, by its table of rules, and nowhere else."""

import ast
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from conclave.retention import marks, rules, visibility
from conclave.retention.rules import RULES, Bounds
from conclave.store.engine import schema

ROOT = Path(__file__).resolve().parents[2]

TABLES = ("groups", "tombstones", "members", "self_destructing", "timers", "server_state")
"""The tables whose columns say what becomes of messages."""

PRESENT = ("holds", "taken_back", "tombstones", "user_tombstones")
"""The tables that decide by having a row."""

SAY_WHICH = {
    *("group_key", "group_id", "sequence_num", "member_id", "user_id", "created_at", "seconds"),
    *("archived_seq", "last_seq", "self_destructs", "taken_back_count", "policy_source"),
}
"""Columns that rules name, and that say which message or group is meant, or where it is; they hide nothing."""

BELOW = ("conclave/retention/", "conclave/store/", "spark/", "conclave/client/")
"""What may compare them: the rules, the queries and plans made of their rows, and the client's own history."""

ELSEWHERE = {
    "conclave/actions/messages.py": {"watermark"},  # raises it
    "conclave/actions/purges.py": {"expired_before"},  # records in the audit log what it becomes
    "conclave/actions/replay.py": {  # restores these from the ledger
        *("ended", "holds", "joined_after", "read_up_to", "taken_back", "tombstones", "watermark"),
    },
    "conclave/actions/taking_back.py": {"taken_back"},  # inserts and lists them
    "conclave/archive/scan.py": {"taken_back"},  # skips rows that their file marks as redacted
    "conclave/archive/reader.py": {"taken_back"},  # as above, for bodies
    "conclave/archive/window.py": {"taken_back"},  # as above, for bodies
    "conclave/cache/groups.py": {"keeps_commits", "watermark"},  # caches no pages of such groups; raises watermarks
    "conclave/cli/cleanup.py": {"erases"},  # words for operators, as in the next two
    "conclave/cli/retention.py": {"erases", "expired_before", "floor_seq", "gone_below"},
    "conclave/proof/experiment.py": {"erasable_before", "erases"},  # dates its messages to be due, or not
    "conclave/server/duties.py": {"taken_back"},  # notifies streams
}
"""Which modules above the store compare such columns, and why that hides or erases nothing by a rule of its own."""


@cache
def deciding(tmp: Path) -> frozenset[str]:
    """Return the columns by which the rules decide, as their own texts have them, and PRESENT."""
    path = tmp / "hot.db"
    schema.prepare(path)
    with closing(sqlite3.connect(path)) as connection:
        columns = {row[1] for table in TABLES for row in connection.execute(f"PRAGMA table_info({table})")}
    texts = [rules.GOVERNED, visibility._TIMED, marks._SETTLE, rules.EXPIRES_BEFORE, rules.OLD_ENOUGH_BEFORE]
    for rule in RULES.values():
        texts += [rule.tables, *(of(Bounds()) for of in (rule.hot, rule.some, rule.whole))]
    named = set(re.findall(r"\w+", " ".join(texts)))
    of_policy = {"expires_before", "age_limit"}
    derived = {*of_policy, "cutoff", "commits_above", "erasable_before", "old_enough_before"}
    return frozenset((columns & named) - SAY_WHICH | derived | set(PRESENT))


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    return deciding(tmp_path_factory.mktemp("schema"))


DECIDES = (ast.Compare, ast.BoolOp, ast.BinOp)
"""What a value decides in, however deep inside."""

ORDERS = {"min", "max", "sorted", "bool", "any", "all", "bisect_left", "bisect_right", "bisect"}
"""Functions whose result depends on how values compare."""


def compared(source: str, columns: frozenset[str]) -> Iterator[str]:
    """Yield the columns that a module compares: in the text of its SQL, or in Python, by other names too."""
    tree = ast.parse(source)
    passed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            passed |= {id(part) for part in node.values}
            parts = (part.value if isinstance(part, ast.Constant) else "value" for part in node.values)
            texts.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed:
            texts.append(node.value)
    called = {alias: name for text in texts for name, alias in re.findall(r"\b(\w+) AS (\w+)", text, re.IGNORECASE)}
    for text in texts:
        yield from compared_in_sql(text, columns)
        for alias, name in called.items():
            if name in columns and alias not in columns and any(compared_in_sql(text, frozenset({alias}))):
                yield name
    yield from compared_in_python(tree, columns - {"told", "ended", "holds", "tombstones"})  # words of other things


def compared_in_python(tree: ast.Module, columns: frozenset[str]) -> Iterator[str]:
    """Yield the columns on whose values the code of a module depends."""
    called = {
        target.id: name_of(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and name_of(node.value) in columns
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    open_nodes: list[tuple[ast.AST, bool]] = [(tree, False)]
    while open_nodes:
        node, decides = open_nodes.pop()
        if decides and isinstance(node, ast.expr):
            name = name_of(node)
            yield from columns & {called.get(name, name)}
        tested = set(map(id, parts_that_decide(node)))
        open_nodes += ((child, decides or id(child) in tested) for child in ast.iter_child_nodes(node))


def parts_that_decide(node: ast.AST) -> Sequence[ast.AST]:
    """Return the parts of a node whose values decide what happens."""
    if isinstance(node, DECIDES) or (isinstance(node, ast.Call) and name_of(node.func) in ORDERS):
        return list(ast.iter_child_nodes(node))
    if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
        return [node.test]
    if isinstance(node, ast.comprehension):
        return node.ifs
    if isinstance(node, ast.Match):
        return [node.subject]
    return [node.operand] if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) else []


def compared_in_sql(text: str, columns: frozenset[str]) -> Iterator[str]:
    case = re.IGNORECASE if re.search(r"\b(?:select|update|delete) .*\b(?:from|set|where)\b", text) else 0
    text = re.sub(r"\bSET\b.*?(?=\bWHERE\b|$)", "", text, flags=re.DOTALL | case)
    for column in columns.intersection(re.findall(r"\w+", text)):
        is_compared = (
            rf"\b{column}\s*(?:[<>=]|!=|(?:IS|IN|NOT|BETWEEN)\b)"
            rf"|(?:[<>=]|\b(?:IS|NOT|AND|OR|WHERE|WHEN|BETWEEN|iif))\s*\(*(?:\w+\.)?{column}\b"
            rf"|\b(?:min|max)\([^()]*\b{column}\b"
        )
        is_asked = rf"\b(?:FROM|JOIN)\s+(?:\w+,\s*)*{column}\b" if column in PRESENT else is_compared
        if re.search(is_asked, text, case):
            yield column


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return node.id if isinstance(node, ast.Name) else ""


def test_the_columns_are_those_of_the_rules(columns: frozenset[str]) -> None:
    assert {"effective_expiry", "floor_seq", "gone_below", "expired_before", "watermark", "redact_at"} <= columns


def test_a_column_by_which_a_rule_decides_is_compared_nowhere_above_the_store(columns: frozenset[str]) -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path in (*ROOT.glob("conclave/**/*.py"), *ROOT.glob("spark/**/*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(BELOW):
            found[name] |= set(compared(path.read_text(encoding="utf-8"), columns))
    assert {name: each for name, each in found.items() if each} == ELSEWHERE


@pytest.mark.parametrize(
    ("source", "column"),
    [
        (
            'query = "SELECT 1 FROM messages JOIN groups USING (group_key) WHERE sequence_num <= gone_below"',
            "gone_below",
        ),
        ('query = f"AND created_at < max({at}, groups.expired_before)"', "expired_before"),
        ('query = "sender_id IN (SELECT user_id FROM user_tombstones)"', "user_tombstones"),
        ('query = f"{query} AND NOT ended"', "ended"),
        ("is_hidden = message.sequence_num <= group.gone_below", "gone_below"),
        ('if row["watermark"] >= number: go()', "watermark"),
        ('is_hidden = created_at < int(row["expired_before"])', "expired_before"),
        ('is_hidden = row["expired_before"] - created_at > 0', "expired_before"),
        ("is_hidden = bool(max(0, group.gone_below - message.sequence_num + 1))", "gone_below"),
        ("gone = group.gone_below\nis_hidden = message.sequence_num <= gone", "gone_below"),
        ("seen = [each for each in messages if each.sequence_num > group.gone_below]", "gone_below"),
        ("first = bisect_left(times, group.expired_before)", "expired_before"),
        ("if policy.erases: go()", "erases"),
        ("match group.gone_below:\n    case 0: go()", "gone_below"),
        ("is_hidden = created_at < policy.expires_before(now)", "expires_before"),
        (
            'one = "SELECT gone_below AS gone FROM groups"\nother = f"{one} WHERE sequence_num <= gone"',
            "gone_below",
        ),
        ('query = "select 1 from self_destructing where not ended"', "ended"),
        ('query = "SELECT 1 FROM messages, holds WHERE holds.group_key = messages.group_key"', "holds"),
    ],
)
def test_a_condition_that_is_said_again_is_found(source: str, column: str, columns: frozenset[str]) -> None:
    assert column in set(compared(source, columns))


def test_what_only_writes_a_column_is_no_condition(columns: frozenset[str]) -> None:
    source = '"""It compares gone_below < 3."""\nquery = "UPDATE groups SET gone_below = ? WHERE group_key = ?"'
    assert set(compared(source, columns)) == set()
