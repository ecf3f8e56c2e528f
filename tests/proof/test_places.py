"""A body that is planted in any place of any file is found there; and what is well is not taken for one."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conclave.proof import bodies as examined_bodies, frozen, pages
from conclave.proof.findings import MOST_FINDINGS, Finding, Kind, ProofPart
from conclave.proof.verify import ProofError
from conclave.store import bodies
from conclave.store.engine import sqlite
from conclave.system import locks
from tests.proof.stores import PLANTED, Bodies, File, examined, kinds
from tests.support import stores


@pytest.fixture
def store(tmp_path: Path) -> Bodies:
    made = Bodies(tmp_path)
    with made.opened() as connection:
        sqlite.truncate_wal(connection)
    return made


def places_of(parts: dict[str, ProofPart]) -> list[tuple[int | None, int | None]]:
    return [(each.page, each.offset) for part in parts.values() for each in part.findings]


def test_a_store_in_which_bodies_were_erased_is_clean(store: Bodies) -> None:
    found = store.examine()
    assert kinds(found) == {}
    segments = found["body segments"].looked_at
    assert (segments["living bodies"], segments["erased bodies"]) == (700 - 234, 234)
    assert found["references"].looked_at["rows"] == 700
    assert found["free pages"].looked_at["pages"] > 100, "there are some"
    with store.opened() as connection:
        page_count = connection.execute("PRAGMA page_count").fetchone()[0]
    assert page_count / 2 < segments["pages"] < page_count
    store.give_space_back()
    assert kinds(store.examine()) == {}


def test_a_segment_that_the_server_begins_while_all_are_listed_is_a_whole_one(store: Bodies) -> None:
    with store.opened() as connection:
        last = max(each.number for each in examined_bodies.segments_of(connection))

    def begin_one(_: str) -> None:
        with store.opened() as other, sqlite.write_transaction(other):
            other.execute("UPDATE body_segments SET sealed = 1")
            bodies.put(other, b"new")

    with store.opened() as connection:
        connection.set_trace_callback(begin_one)
        found = examined_bodies.segments_of(connection)
        connection.set_trace_callback(None)
    assert found[-1].number > last
    assert all(each.has_table and each.is_listed for each in found)


@pytest.mark.parametrize("kind", ["unallocated part", "freed block"])
def test_a_body_in_an_unused_part_of_a_leaf_is_found(store: Bodies, kind: str) -> None:
    file = File(store.path)
    page, stretch = next(
        (page, each)
        for page, leaf in file.leaves(store.path)
        for each in leaf.unused
        if each.kind == kind and each.end - each.begin >= 60
    )
    begin = file.plant(page, stretch.begin + 20)
    found = store.examine()
    assert kinds(found) == {"body segments": {"remains"}}
    assert places_of(found) == [(page, begin)]
    [finding] = found["body segments"].findings
    assert kind in finding.told
    assert finding.path == str(store.path)


def test_a_body_behind_the_end_of_another_one_is_found(store: Bodies) -> None:
    file = File(store.path)
    page = next(
        last
        for _, leaf in file.leaves(store.path)
        for first in leaf.overflows
        for last, left in [file.last_of(*first)]
        if left < 4000
    )
    begin = file.plant(page, 4096 - len(PLANTED))
    found = store.examine()
    assert kinds(found) == {"body segments": {"remains"}}
    assert places_of(found) == [(page, begin)]


def test_a_body_in_an_inner_page_is_found(store: Bodies) -> None:
    file = File(store.path)
    page = file.inner(store.path)
    begin = file.plant(page, 1000)
    found = store.examine()
    assert kinds(found) == {"body segments": {"remains"}}
    assert places_of(found) == [(page, begin)]


def test_a_body_in_a_free_page_is_found(store: Bodies) -> None:
    file = File(store.path)
    trunk = pages.read_trunk(file.page(file.layout.first_trunk), file.layout)
    leaf = sorted(trunk.leaves)[3]
    expected = {(leaf, file.plant(leaf, 4000)), (file.layout.first_trunk, file.plant(file.layout.first_trunk, 4000))}
    found = store.examine()
    assert kinds(found) == {"free pages": {"remains"}}
    assert set(places_of(found)) == expected


def test_a_body_behind_the_last_page_is_found(store: Bodies) -> None:
    with store.path.open("ab") as file:
        file.write(bytes(5000) + PLANTED)
    size = store.path.stat().st_size
    found = store.examine()
    assert kinds(found) == {"free pages": {"past_end"}}
    assert places_of(found) == [(None, size - len(PLANTED))]


def test_a_body_that_nothing_refers_to_is_found(store: Bodies) -> None:
    with store.opened() as connection:
        connection.execute("DELETE FROM messages WHERE message_id = ?", (store.ids[100],))
    found = store.examine()
    assert kinds(found) == {"references": {"orphan"}}
    assert str(store.ids[100]) in found["references"].findings[0].told


def test_every_owner_of_a_body_counts(store: Bodies) -> None:
    with store.opened() as connection, sqlite.write_transaction(connection):
        put = [bodies.put(connection, bytes([each]) * 30) for each in range(6)]
        for statement, values in (
            ("users (user_id, username, password_hash, alias, created_at) VALUES (x'01', 'a', '', '', 0)", []),
            (
                "groups (group_id, group_name, alias, created_at, group_info_body) VALUES (x'01', 'g', '', 0, ?)",
                put[:1],
            ),
            ("key_packages (user_id, is_last_resort, package_body) VALUES (x'01', 0, ?)", put[1:2]),
            ("welcomes (welcome_id, user_id, group_key, welcome_body) VALUES (x'01', x'01', 1, ?)", put[2:3]),
            (
                "invites (invite_id, group_key, invitee_id, inviter_id, created_at,"
                " commit_body, welcome_body, group_info_body) VALUES (x'01', 1, x'01', x'01', 0, ?, ?, ?)",
                put[3:],
            ),
        ):
            connection.execute(f"INSERT INTO {statement}", values)
    assert kinds(store.examine()) == {}
    with store.opened() as connection:
        connection.execute("DELETE FROM invites")
    assert len(store.examine()["references"].findings) == 3


def test_a_segment_whose_removal_was_stopped_is_found(store: Bodies) -> None:
    with store.opened() as connection:
        connection.execute("UPDATE body_segments SET dropped = 1, live_bytes = 0")
    assert kinds(store.examine()) == {"body segments": {"dropped_segment"}}
    store.give_space_back()
    assert kinds(store.examine()) == {}


def test_a_table_that_is_not_listed_is_found_and_a_list_without_a_table(store: Bodies) -> None:
    with store.opened() as connection:
        connection.execute("CREATE TABLE body_segment_77 (body_id INTEGER PRIMARY KEY, body BLOB) STRICT")
        connection.execute("INSERT INTO body_segments (segment, sealed) VALUES (88, 1)")
    found = store.examine()["body segments"].findings
    assert {each.kind for each in found} == {Kind.UNLISTED_SEGMENT}
    assert sorted(each.told.partition(":")[0] for each in found) == ["body_segment_77", "body_segment_88"]


def test_a_page_that_cannot_be_read_is_found_and_the_others_are_examined(store: Bodies) -> None:
    file = File(store.path)
    (damaged, _), (planted, leaf) = list(file.leaves(store.path))[3:5]
    file.plant(damaged, 3, b"\xff\xff")
    file.plant(planted, leaf.unused[0].begin + 10)
    found = store.examine()["body segments"].findings
    assert {(each.kind, each.page) for each in found} == {(Kind.MALFORMED, damaged), (Kind.REMAINS, planted)}


def test_a_table_in_circles_is_walked_to_an_end(store: Bodies) -> None:
    """Each of its hundreds of entries leads back to itself."""
    file = File(store.path)
    (page, _), *_ = pages.read_interior(file.page(file.inner(store.path)), file.layout).children
    inner = pages.read_interior(file.page(page), file.layout)
    data = bytearray(file.page(page))
    for begin in pages._cells(bytes(data), file.layout, 12):
        data[begin : begin + 4] = page.to_bytes(4, "big")
    file.plant(page, 0, bytes(data))
    assert len(inner.children) > 50
    found = store.examine()["body segments"]
    assert [(each.kind, each.page) for each in found.findings] == [(Kind.MALFORMED, page)]


def test_a_list_of_free_pages_in_a_circle_ends(store: Bodies) -> None:
    file = File(store.path)
    first = file.layout.first_trunk
    file.plant(first, 0, first.to_bytes(4, "big"))
    assert kinds(store.examine()) == {"free pages": {"malformed"}}


@contextmanager
def reading(path: Path, begin: str = "BEGIN") -> Iterator[None]:
    """A process that reads and does not end; with another ``begin`` it only has the database open."""
    program = (
        "import sqlite3, sys; connection = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "connection.execute(sys.argv[2]); connection.execute('SELECT count(*) FROM messages').fetchone();"
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, path, begin], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout
        reader.stdout.readline()
        yield
        assert reader.stdin
        reader.stdin.close()


def test_a_log_that_a_reader_keeps_open_is_a_finding(store: Bodies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "ATTEMPTS", 3)
    with store.opened() as connection:
        store.erase(connection, 1)
        with reading(store.path):
            store.erase(connection, 2)
            found = store.examine()
            assert kinds(found) == {name: {"log_busy"} for name in ("body segments", "free pages", "write-ahead log")}
    assert kinds(store.examine()) == {}
    with reading(store.path):
        assert set(kinds(store.examine())) <= {"write-ahead log"}, "a reader of the newest holds up nothing else"


def test_what_was_in_the_log_is_gone_afterwards(store: Bodies) -> None:
    """Also what lies behind its end, from before it was begun anew."""
    log = store.path.with_name("hot.db-wal")
    with reading(store.path, "PRAGMA user_version"):
        with store.opened() as connection:
            store.erase(connection, 1)
        with log.open("ab") as file:
            file.write(PLANTED)
        assert PLANTED in log.read_bytes()
        assert store.search.numbers_in_files(log)
        assert kinds(store.examine()) == {}
        assert log.read_bytes() == b""


@pytest.mark.system
def test_long_walks_hold_many_short_moments(store: Bodies, monkeypatch: pytest.MonkeyPatch) -> None:
    """One page at a time, and bodies are erased and added meanwhile."""
    expected = store.examine()
    monkeypatch.setattr(frozen, "HELD_SECONDS", -1.0)
    assert {name: part.looked_at for name, part in store.examine().items() if name != "write-ahead log"} == {
        name: part.looked_at for name, part in expected.items() if name != "write-ahead log"
    }
    moments = 0
    part = ProofPart("body segments")
    held = frozen.frozen

    @contextmanager
    def hold() -> Iterator[frozen.Frozen]:
        nonlocal moments
        moments += 1
        with store.opened() as connection:
            if moments % 10 == 0:
                store.add(connection, 5)
                store.erase(connection, len(store.ids) - 2)
        with held(store.path, descriptor) as view:
            yield view

    monkeypatch.setattr(bodies, "SEGMENT_BYTES", 3_000_000)
    with locks.open_to_lock(store.path) as descriptor:
        examined_bodies.examine_segments(part, store.path, hold)
    assert part.findings == []
    assert moments > 400
    assert part.looked_at["segments"] > 1, "one came into being meanwhile"
    living = part.looked_at["living bodies"] + part.looked_at["erased bodies"]
    assert living > 700


def test_files_that_are_nobody_s_are_found(store: Bodies, tmp_path: Path) -> None:
    data = store.config.data
    (data / "work" / "tmpdead").mkdir(parents=True)
    (data / ".conclave").touch()
    assert kinds(store.examine()) == {}, "an empty folder of a worker is none"
    (tmp_path / "elsewhere" / "lifetime=-1" / "span=0").mkdir(parents=True)
    (data / "archive").symlink_to(tmp_path / "elsewhere")
    (data / "archive" / "lifetime=-1" / "span=0" / "part-0.parquet").write_bytes(PLANTED)
    (data / "archive" / "something").write_bytes(PLANTED)
    (data / "notes").mkdir()
    (data / "copy.db").write_bytes(PLANTED)
    (tmp_path / "hot.db.before-upgrade").write_bytes(PLANTED)
    (tmp_path / "hot.db2").write_bytes(b"somebody else's")
    (tmp_path / "hot.db.server-lock").write_bytes(PLANTED)
    (tmp_path / "hot.db.reserve").write_bytes(bytes(3_000_000) + PLANTED)
    found = store.examine()
    assert [each.path.removeprefix(str(tmp_path)) for each in found["other files"].findings] == [
        "/hot.data/copy.db",
        "/hot.data/notes",
        "/hot.db.before-upgrade",
        "/hot.db.reserve",
        "/hot.db.server-lock",
    ]
    assert {each.kind for each in found["other files"].findings} == {Kind.UNKNOWN_FILE}
    assert {(each.kind, Path(each.path).name) for each in found["archive"].findings} == {
        (Kind.REPLACED_FILE, "part-0.parquet"),
        (Kind.UNNAMED_FILE, "something"),
    }


def test_a_file_in_the_work_folder_is_found(store: Bodies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conclave.proof.folders.PAUSE_SECONDS", 0.001)
    folder = store.config.work / "tmpdead"
    folder.mkdir(parents=True)
    (folder / "batch").write_bytes(PLANTED)
    (folder / "link").symlink_to("/")
    found = store.examine()
    assert kinds(found) == {"work folder": {"work_file"}}
    assert [Path(each.path).name for each in found["work folder"].findings] == ["batch", "link"]


def test_a_reserve_and_the_files_of_a_database_in_its_data_directory_are_known(tmp_path: Path) -> None:
    store = Bodies(tmp_path, 10)
    config = type(store.config)(database_path=str(store.path), data_path=str(tmp_path))
    (tmp_path / "hot.db.reserve").write_bytes(bytes(3_000_000))
    for name in (".conclave", "hot.db.server-lock"):
        (tmp_path / name).touch()
    assert kinds(examined(config)) == {}


def test_what_is_no_store_of_ours_is_an_error_of_one_line(tmp_path: Path) -> None:
    store = Bodies(tmp_path, 10)
    for content, why in ((b"", "is empty"), (b"x" * 5000, "file is not a database")):
        store.path.write_bytes(content)
        with pytest.raises(ProofError, match=why):
            store.examine()
    store.path.unlink()
    with pytest.raises(ProofError, match="no such database"):
        store.examine()


def test_a_store_that_was_copied_without_its_log_has_its_log_turned_on(tmp_path: Path) -> None:
    store = Bodies(tmp_path, 10)
    with store.opened() as connection:
        connection.execute(f"VACUUM INTO '{tmp_path / 'copy'}'")
    store.path.unlink()
    (tmp_path / "copy").rename(store.path)
    assert kinds(store.examine()) == {}


def test_findings_are_bounded() -> None:
    part = ProofPart("any")
    for number in range(MOST_FINDINGS + 5):
        part.add(Finding(Kind.REMAINS, "file", "told", number))
    assert (len(part.findings), part.more) == (MOST_FINDINGS, 5)


def test_a_new_store_is_clean(tmp_path: Path) -> None:
    stores.prepare(tmp_path / "hot.db")
    store = Bodies(tmp_path, 0)
    assert kinds(store.examine()) == {}
