"""The data directory: made, taken, or refused and left as it is."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from conclave.system.data_folder import MARKER, DataFolderError, prepare, require_own
from tests.support.server import capless


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def listing(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): mode(path) for path in [folder, *folder.rglob("*")]}


def test_a_data_directory_is_made_and_taken_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for _ in range(2):
        prepare(data, tmp_path / "chat.db", data / "archive")
        assert (mode(data), [path.name for path in data.iterdir()]) == (0o700, [MARKER])
        data.chmod(0o755)
    (data / "something else").touch()
    prepare(data, tmp_path / "chat.db", data / "archive")


def test_an_archive_under_another_name_is_the_folder_s_own(tmp_path: Path) -> None:
    for content, archive in ((("cold/_delta_log/",), "cold"), (("deep/cold/_delta_log/",), "deep/cold")):
        data = fill(tmp_path / archive.replace("/", "-"), content)
        prepare(data, tmp_path / "chat.db", data / archive)
        assert (data / MARKER).exists()
    strange = fill(tmp_path / "strange", ("cold/photos/",))
    with pytest.raises(DataFolderError, match="contains cold/photos"):
        prepare(strange, tmp_path / "chat.db", strange / "cold")


@pytest.mark.parametrize(
    "content",
    [
        (),
        ("archive/",),
        ("archive/_delta_log/", "archive/lifetime=-1/"),
        ("chat.db", "chat.db-wal", "chat.db-shm", "chat.db.server-lock", "chat.db.cleanup-lock"),
    ],
)
def test_a_folder_that_holds_only_a_database_or_an_archive_is_taken(tmp_path: Path, content: tuple[str, ...]) -> None:
    data = fill(tmp_path / "data", content)
    prepare(data, data / "chat.db", data / "archive")
    assert mode(data) == 0o700


@pytest.mark.parametrize(
    "content",
    [
        ("letters/",),
        ("work/4711/",),
        ("archive/photos/",),
        ("work",),
        ("work/", ".profile"),
        ("other.db",),
        (f"{MARKER}/",),
    ],
)
def test_a_folder_that_holds_anything_else_is_refused_and_left_as_it_is(
    tmp_path: Path, content: tuple[str, ...]
) -> None:
    data = fill(tmp_path / "data", content)
    before = listing(tmp_path)
    with pytest.raises(DataFolderError, match="which is not Conclave's") as refused:
        prepare(data, data / "chat.db", data / "archive")
    assert str(data) in str(refused.value)
    assert listing(tmp_path) == before


def test_a_folder_that_another_process_makes_its_own_meanwhile_holds_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = fill(tmp_path / "data", ())
    is_file = Path.is_file

    def meanwhile(path: Path) -> bool:
        found = is_file(path)
        if path.name == MARKER:
            path.touch()
            (data / "work" / "1-x").mkdir(parents=True, exist_ok=True)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_file", meanwhile)
        require_own(data, data / "chat.db", data / "archive")
    assert (data / MARKER).is_file()


def test_an_empty_folder_in_which_everybody_can_write_is_refused(tmp_path: Path) -> None:
    data = fill(tmp_path / "tmp", ())
    data.chmod(0o1777)
    with pytest.raises(DataFolderError, match="world-writable"):
        prepare(data, tmp_path / "chat.db", data / "archive")
    assert listing(data) == {".": 0o1777}


@pytest.mark.parametrize("path", ["/", "/tmp", "/etc", "/usr/bin"])
def test_folders_of_the_system_are_refused(path: str) -> None:
    """By the look that comes before any change: a fault here must not change the machine."""
    with pytest.raises(DataFolderError):
        require_own(Path(path), Path("/nowhere/chat.db"), Path(path, "archive"))


def test_what_is_no_folder_or_cannot_be_one_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to("circle")
    for name, reason in (
        ("file", "is a file, not a folder"),
        ("file/data", "Not a directory"),
        ("missing/data", "there is no folder"),
        ("circle", "symbolic links"),
        ("x" * 300, "File name too long"),
    ):
        with pytest.raises(DataFolderError, match=reason) as refused:
            prepare(tmp_path / name, tmp_path / "chat.db", tmp_path / name / "archive")
        assert "\n" not in str(refused.value)


def test_a_folder_that_cannot_be_written_is_told_in_a_line(tmp_path: Path) -> None:
    locked = fill(tmp_path / "locked", ("archive/",))
    locked.chmod(0o500)
    program = "from pathlib import Path; from conclave.system.data_folder import *\n"
    program += "try: prepare(Path('{}'), Path('/x'), Path('/y'))\n"
    program += "except DataFolderError as error: print(error)"
    for path in (locked, locked / "data"):
        done = capless("-c", program.format(path), cwd=tmp_path)
        assert done.stdout == f"data_path: {path}: cannot be used: Permission denied\n", done.stderr
    assert mode(locked) == 0o500
    locked.chmod(0o700)


def fill(data: Path, content: tuple[str, ...]) -> Path:
    data.mkdir()
    for name in content:
        make: Callable[..., None] = (data / name).mkdir if name.endswith("/") else (data / name).touch
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        make(exist_ok=True)
    return data
