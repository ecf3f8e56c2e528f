"""The archive's folder: what its table does not name is found, and the canary flies through both tiers."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conclave.actions.command_runner import Outside
from conclave.archive.files import LOG
from conclave.clock import FakeClock
from conclave.config.archive import ArchiveConfig
from conclave.proof.canary import Canary
from conclave.proof.findings import Kind
from tests.proof.stores import examined, kinds
from tests.support.archived import DAY, Store
from tests.support.cleaner import Cleaner

pytestmark = pytest.mark.system


class Archived(Store):
    """Messages of three groups in both tiers, in parts that were changed so often that the log has a checkpoint."""

    def __init__(self, folder: Path, cleaner: Cleaner) -> None:
        super().__init__(folder, cleaner)
        keys = [self.add_group() for _ in range(3)]
        while not (self.config.archive_path / LOG / "_last_checkpoint").exists():
            for key in keys:
                self.send(key, 30)
            self.now += 10 * DAY
            self.run()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, cleaner: Cleaner) -> Archived:
    return Archived(tmp_path_factory.mktemp("original"), cleaner)


@pytest.fixture
def store(tmp_path: Path, original: Archived) -> Store:
    """A copy: making one takes a while."""
    return original.copied(tmp_path / "copy")


def names(store: Store) -> set[str]:
    return {path.relative_to(store.config.archive_path).as_posix() for path in store.config.archive_path.rglob("*")}


def test_replaced_files_are_found_unless_they_may_stay(store: Store) -> None:
    """And kept ones are told as kept, not as clean."""
    assert kinds(examined(store.config, store.now)) == {}
    store.delete_group(next(iter(store.group_ids)))
    delayed = replace(store.config.archive, erase_delay=365 * DAY)
    before = names(store)
    store.run(archive=delayed)
    added = {name for name in names(store) - before if name.endswith(".parquet") and LOG not in name}
    assert added, "rows of the others were written anew"
    patient = examined(replace(store.config, archive=delayed), int(store.config.archive_path.stat().st_mtime))
    assert kinds(patient) == {}
    assert "replaced files" in patient["archive"].kept[0]
    assert patient["archive"].looked_at["kept files"] > 0
    hurried = examined(store.config, store.now)
    assert kinds(hurried) == {"archive": {"replaced_file"}}
    assert len(hurried["archive"].findings) == patient["archive"].looked_at["kept files"]
    store.run()
    assert kinds(examined(store.config, store.now)) == {}


def test_what_a_run_leaves_that_was_stopped_is_found_and_gone_after_the_next(store: Store) -> None:
    store.delete_group(next(iter(store.group_ids)))
    store.cleaner.kill_run(store.config, store.now, "archive.before_erase")
    assert kinds(examined(store.config, store.now))["archive"] == {"replaced_file"}
    store.run()
    assert kinds(examined(store.config, store.now)) == {}


def test_files_that_nobody_names_and_a_table_that_cannot_be_read_are_found(store: Store) -> None:
    folder = store.config.archive_path
    named = next(folder.glob("lifetime=*/span=*/*.parquet"))
    for planted in (named.with_name("part-0.parquet"), folder / LOG / f"{99:020d}.json", folder / "more"):
        planted.write_bytes(b"\xa7" * 24)
    found = examined(store.config, store.now)["archive"].findings
    # The entry is taken for a version that cannot be read: then nobody can say what belongs to the table.
    assert {each.kind for each in found} == {Kind.UNREADABLE}
    (folder / LOG / f"{99:020d}.json").unlink()
    (folder / LOG / "_commit_1.json.tmp").write_bytes(b"{}")
    found = examined(store.config, store.now)["archive"].findings
    assert {(each.kind, Path(each.path).name) for each in found} == {
        (Kind.REPLACED_FILE, "part-0.parquet"),
        (Kind.UNNAMED_FILE, "_commit_1.json.tmp"),
        (Kind.UNNAMED_FILE, "more"),
    }


def test_a_canary_is_found_in_both_tiers_and_erased_from_both(tmp_path: Path, cleaner: Cleaner) -> None:
    """The command itself, with a Spark of its own."""
    store = Store(tmp_path, cleaner, ArchiveConfig(after=7 * DAY, margin=DAY))
    config = tmp_path / "conclave.toml"
    config.write_text(
        f'database_path = "{store.config.database}"\n[archive]\nafter = "7d"\nmargin = "1d"\n'
        '[cleanup]\ndisk_reserve = "0"\n'
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    (tmp_path / "hot.data").mkdir()
    (tmp_path / "hot.data" / ".conclave").touch()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "conclave", "verify-erasure", "--canary", "--json", "--config", config],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
    )
    told = json.loads(done.stdout)
    assert (told["verdict"], done.returncode) == ("clean", 0), done.stdout + done.stderr
    flown = told["parts"][-1]
    assert flown["notes"] == []
    assert flown["looked_at"]["pieces in the archive of messages that stay"] > 0
    assert store.table().num_rows == 0


def test_a_canary_that_runs_have_moved_meanwhile_is_looked_for_where_it_is_then(
    tmp_path: Path, cleaner: Cleaner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where messages move after some seconds: what was to stay in the database is no longer there."""
    store = Store(tmp_path, cleaner, ArchiveConfig(after=1, margin=0))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    clock = FakeClock(store.now)

    def clean_up() -> str:
        store.now += 2
        return str(store.run()["error"])

    part = Canary(store.config, Outside(store.config, clock), clean_up).run()
    assert part.findings == []
    assert part.looked_at["pieces in the archive of messages that stay"] > 0
    assert "pieces in the database of messages that stay" not in part.looked_at
    assert store.table().num_rows == 0
