"""`conclave archive`: what is there, whether it is whole, and how a group's messages come back."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conclave import cli_archive
from conclave.clock import FakeClock
from tests.cleaner import Cleaner
from tests.spark.archived import DAY, USERS, Store


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Store:
    return Store(tmp_path, cleaner)


def status(store: Store, monkeypatch: pytest.MonkeyPatch, *options: str) -> Result:
    """Run `conclave archive status` on the store, at its time."""
    monkeypatch.setattr(cli_archive, "SystemClock", lambda: FakeClock(store.now))
    path = store.folder / "conclave.toml"
    path.write_text(f'database_path = "{store.config.database}"\n[archive]\nafter = "7d"\nmargin = "1d"\n')
    result = CliRunner().invoke(cli_archive.archive, ["status", "--config", str(path), *options])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_status_tells_what_is_where_and_what_is_overdue(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    result = status(store, monkeypatch)
    assert (result.exit_code, result.stderr) == (1, f"conclave: {store.config.database}: nothing was ever archived\n")
    kept, timed, deleted = store.add_group(), store.add_group(20 * DAY), store.add_group()
    for group_key in (kept, timed, deleted):
        store.send(group_key, 3)
    store.now += 8 * DAY
    store.run()
    found = json.loads(status(store, monkeypatch, "--json").stdout)
    files = list(store.config.archive_path.glob("lifetime=*/span=*/*.parquet"))
    shares = {each["lifetime"]: each for each in found["shares"]}
    assert (shares[-1]["messages"], shares[-1]["body_bytes"], shares[-1]["groups"]) == (6, 1800, 2)
    assert (shares[20 * DAY]["month"], shares[20 * DAY]["messages"]) == ("2023-11", 3)
    assert sum(each["files"] for each in shares.values()) == len(files)
    assert sum(each["disk_bytes"] for each in shares.values()) == sum(path.stat().st_size for path in files)
    assert found["table_version"] == found["needed_version"]
    assert set(found["overdue"].values()) == {0}
    assert [(move["messages"], move["finished_at"]) for move in found["moves"]] == [(9, store.now)]
    assert "nothing is overdue" in status(store, monkeypatch).stdout
    store.delete_group(deleted)
    store.delete_account(USERS[0])
    store.now += 13 * DAY
    overdue = json.loads(status(store, monkeypatch, "--json").stdout)["overdue"]
    assert overdue == {
        "expired_parts": 1,
        "expired_seconds": DAY,
        "deleted_groups": 1,
        "deleted_groups_seconds": 13 * DAY,
        "deleted_accounts": 1,
        "deleted_accounts_seconds": 13 * DAY,
        "restored_messages": 0,
    }
    assert "deleted groups, the first 13d ago" in status(store, monkeypatch).stdout


def test_status_tells_what_it_can_of_an_archive_that_is_not_there(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.send(store.add_group(), 3)
    store.now += 8 * DAY
    store.run()
    store.config.archive_path.rename(store.folder / "elsewhere")
    result = status(store, monkeypatch)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"conclave: {store.config.archive_path}: ")
    assert "cannot be read" in result.stdout
    assert "900" in result.stdout, "the index is still told"
