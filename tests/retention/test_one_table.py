"""What hides a message and lets it go is decided in the room of retention, by its table of rules, and nowhere else."""

import ast
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from conclave.retention import marks, policy, rules, visibility
from conclave.retention.rules import RULES, Bounds
from conclave.store.engine import schema

ROOT = Path(__file__).resolve().parents[2]

TABLES = ("groups", "tombstones", "members", "self_destructing", "timers", "server_state")
"""The tables whose columns say what becomes of messages."""

PRESENT = ("holds", "tombstones", "user_tombstones")
"""The tables that decide by having a row."""

SAY_WHICH = {
    *("group_key", "group_id", "sequence_num", "member_id", "user_id", "created_at", "seconds"),
    *("archived_seq", "last_seq", "self_destructs", "policy_source"),
}
"""Columns that rules name, and that say which message or group is meant, or where it is; they hide nothing."""

SPARK = "Spark plans by expressions of its own, from the same rows: comparing both plans tests them"
WRITES = "it writes the column, and says which rows it writes"
MENDS = "it brings back what lies in the clock's future"
BEHIND = "it lists the members who are behind, or notes that one is not any more"
LISTS = "it lists the rows themselves"
NARROWS = "it narrows what it looks at before a rule is asked, or tells since when the rule has held"

ELSEWHERE = {
    "groups.py": ({"watermark"}, BEHIND),
    "move_selection.py": ({"effective_expiry"}, "what moves is chosen by lifetime, not erased"),
    "moves.py": ({"tombstones", "user_tombstones"}, WRITES),
    "status.py": ({"cutoff", "erasable_before", "user_tombstones"}, NARROWS),
    "clock_mending.py": ({"expired_before", "redact_at", "told", "tombstones"}, MENDS),
    "changes.py": ({"holds"}, LISTS),
    "replay.py": (
        {"ended", "holds", "joined_after", "read_up_to", "tombstones", "watermark"},
        WRITES,
    ),
    "accounts.py": ({"holds"}, LISTS),
    "fetch_gaps.py": ({"watermark"}, BEHIND),
    "members.py": ({"watermark"}, BEHIND),
    "messages.py": ({"watermark"}, WRITES),
    "receipts.py": ({"tombstones"}, LISTS),
    "timers.py": ({"ended", "read_up_to", "redact_at", "told"}, "it keeps the timers"),
    "explain.py": ({"holds", "tombstones", "watermark"}, LISTS),
    "export.py": ({"holds"}, LISTS),
    "group_list.py": ({"holds", "tombstones"}, LISTS),
    "overdue.py": ({"cutoff", "erasable_before", "erases", "user_tombstones"}, NARROWS),
    "overview.py": ({"effective_expiry", "tombstones", "watermark"}, BEHIND),
    "expiry.py": ({"erasable_before", "user_tombstones"}, NARROWS),
    "read.py": (
        {
            *("effective_expiry", "floor_seq", "gone_below", "keeps_commits", "least_lifetime"),
            *("redact_at", "told", "tombstones", "user_tombstones"),
        },
        SPARK,
    ),
}
"""Which modules compare such columns outside of the room, and why that decides nothing anew."""


@cache
def deciding(tmp: Path) -> frozenset[str]:
    """Return the columns by which the rules decide, as their own texts have them, and PRESENT."""
    path = tmp / "hot.db"
    schema.prepare(path)
    with closing(sqlite3.connect(path)) as connection:
        columns = {row[1] for table in TABLES for row in connection.execute(f"PRAGMA table_info({table})")}
    texts = [rules.GOVERNED, visibility._TIMED, marks._SETTLE, policy.EXPIRES_BEFORE, policy.OLD_ENOUGH_BEFORE]
    for rule in RULES.values():
        texts += [rule.tables, *(of(Bounds()) for of in (rule.hot, rule.some, rule.whole))]
    named = set(re.findall(r"\w+", " ".join(texts)))
    derived = {"cutoff", "commits_above", "erasable_before", "old_enough_before"}
    return frozenset((columns & named) - SAY_WHICH | derived | set(PRESENT))


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    return deciding(tmp_path_factory.mktemp("schema"))


def compared(source: str, columns: frozenset[str]) -> Iterator[str]:
    """Yield the columns that a module compares: in the text of its SQL, or in Python."""
    tree = ast.parse(source)
    passed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            passed |= {id(part) for part in node.values}
            texts = (part.value if isinstance(part, ast.Constant) else "value" for part in node.values)
            yield from compared_in_sql("".join(map(str, texts)), columns)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed:
            yield from compared_in_sql(node.value, columns)
        elif isinstance(node, ast.Compare):
            sides = [name_of(side) for side in (node.left, *node.comparators)]
            yield from columns.intersection(sides) - {"told", "ended"}  # in Python these are words of other things


def compared_in_sql(text: str, columns: frozenset[str]) -> Iterator[str]:
    text = re.sub(r"\bSET\b.*?(?=\bWHERE\b|$)", "", text, flags=re.DOTALL)
    for column in columns:
        is_compared = (
            rf"\b{column}\s*(?:[<>=]|!=|(?:IS|IN|NOT|BETWEEN)\b)"
            rf"|(?:[<>=]|\b(?:IS|NOT|AND|OR|WHERE|WHEN|iif))\s*\(*(?:\w+\.)?{column}\b|\b(?:min|max)\([^()]*\b{column}\b"
        )
        is_asked = rf"\b(?:FROM|JOIN)\s+{column}\b" if column in PRESENT else is_compared
        if re.search(is_asked, text):
            yield column


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return node.id if isinstance(node, ast.Name) else ""


def test_the_columns_are_those_of_the_rules(columns: frozenset[str]) -> None:
    known = {"effective_expiry", "least_lifetime", "hold_limit", "keeps_commits", "erases", "floor_seq", "gone_below"}
    known |= {"expired_before", "commits_below", "watermark", "read_up_to", "redact_at", "told", "ended", "holds"}
    assert known <= columns
    assert columns - known <= {
        *("cutoff", "commits_above", "erasable_before", "old_enough_before", "tombstones", "user_tombstones"),
        *("self_destruct_max_age", "joined_after"),
    }


def test_a_column_by_which_a_rule_decides_is_compared_in_the_room_of_retention_alone(columns: frozenset[str]) -> None:
    """But for what the table above names, with the reason. The client keeps its own history by its own rules."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (*ROOT.glob("conclave/**/*.py"), *ROOT.glob("spark/**/*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(("conclave/retention/", "conclave/client/")):
            found[path.name] |= set(compared(path.read_text(encoding="utf-8"), columns))
    assert {name: each for name, each in found.items() if each} == {name: each for name, (each, _) in ELSEWHERE.items()}


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
    ],
)
def test_a_condition_that_is_said_again_is_found(source: str, column: str, columns: frozenset[str]) -> None:
    assert column in set(compared(source, columns))


def test_what_only_writes_a_column_is_no_condition(columns: frozenset[str]) -> None:
    source = '"""It compares gone_below < 3."""\nquery = "UPDATE groups SET gone_below = ? WHERE group_key = ?"'
    assert set(compared(source, columns)) == set()
