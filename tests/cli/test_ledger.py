"""`conclave evidence ledger`: what the purge ledger says, for people and for programs."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conclave.cli.evidence import evidence
from conclave.store.ledger import book
from conclave.store.ledger.book import LedgerEntry
from tests.support import ledgers
from tests.support.commands import done, refused

TOLD = [LedgerEntry(3, 1_700_000_000, "member", 7, None), LedgerEntry(5, 1_700_000_060, "group", 2, {"gone_below": 9})]

Show = Callable[..., Result]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vault" / "ledger"


@pytest.fixture
def show(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Show:
    monkeypatch.setattr("conclave.cli.common.use_console_log", lambda: None)
    path.parent.mkdir()
    config = tmp_path / "conclave.toml"
    config.write_text(f'database_path = "{tmp_path}/hot.db"\n[vault]\npath = "{path.parent}"\n')
    return lambda *words: CliRunner().invoke(evidence, ["ledger", *words, "--config", str(config)])


def test_the_entries_are_shown_in_their_order(path: Path, show: Show) -> None:
    book.append(path, "0a" * 16, 0, TOLD)
    text = done(show())
    assert text.index("2023-11-14 22:13:20") < text.index("2023-11-14 22:14:20")
    assert '{"gone_below": 9}' in text
    assert [json.loads(line) for line in done(show("--json")).splitlines()] == [each._asdict() for each in TOLD]
    assert [json.loads(line)["change"] for line in done(show("--json", "--after", "3")).splitlines()] == [5]


def test_a_ledger_that_is_not_there_or_damaged_is_told(path: Path, show: Show) -> None:
    assert "there is no ledger yet" in refused(show())
    book.append(path, "0a" * 16, 0, TOLD)
    ledgers.alter_last(path, "member")
    result = show()
    assert "is damaged in the entry of change 3" in refused(result)
    assert "gone_below" in result.stdout, "the others are shown"
