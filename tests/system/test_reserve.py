"""The space kept in reserve: made, given up, made again."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from conclave.system import reserve
from conclave.system.reserve import SLACK_BYTES, Reserve, released_reserve, reserves
from tests.support import stores

SIZE = 1024 * 1024


@pytest.fixture
def config(tmp_path: Path) -> Config:
    stores.prepare(tmp_path / "chat.db")
    return Config(database_path=str(tmp_path / "chat.db"), cleanup=CleanupConfig(disk_reserve=SIZE))


@pytest.fixture
def kept(config: Config) -> Reserve:
    [found] = reserves(config)
    found.refill()
    assert not found.missing()
    return found


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the disk seem to have so many bytes free."""
    return lambda count: monkeypatch.setattr(reserve, "free_bytes", lambda _: count)


def test_it_takes_the_space_that_it_says_and_is_the_owners_alone(kept: Reserve) -> None:
    found = kept.path.stat()
    assert (found.st_size, found.st_mode & 0o777) == (SIZE, 0o600)
    assert found.st_blocks * 512 >= SIZE


def test_a_run_on_a_disk_with_room_leaves_it_alone(config: Config, kept: Reserve) -> None:
    with released_reserve(config):
        assert not kept.missing()


def test_a_run_on_a_full_disk_has_it_until_it_ends(config: Config, kept: Reserve, free: Callable[[int], None]) -> None:
    free(SIZE - 1)
    with released_reserve(config):
        assert kept.path.stat().st_blocks == 0
        free(10 * SIZE)
        with pytest.raises(BlockingIOError):
            kept.refill()
        assert kept.path.stat().st_size == 0, "the server does not take it back while the run is at work"
    kept.refill()
    assert not kept.missing()


def test_it_is_made_only_where_small_things_have_room_beside_it(kept: Reserve, free: Callable[[int], None]) -> None:
    os.truncate(kept.path, 0)
    free(SIZE + SLACK_BYTES - 1)
    kept.refill()
    assert kept.path.stat().st_size == 0
    free(SIZE + SLACK_BYTES)
    kept.refill()
    assert not kept.missing()


def test_a_run_is_not_kept_from_working_where_there_is_none(config: Config, free: Callable[[int], None]) -> None:
    free(0)
    with released_reserve(config):
        assert not reserves(config)[0].path.exists()


def test_a_changed_size_is_followed(kept: Reserve) -> None:
    for size in (2 * SIZE, SIZE // 2, 0, SIZE):
        changed = Reserve(kept.path, size)
        changed.refill()
        assert not changed.missing()
        assert (kept.path.stat().st_size if kept.path.exists() else 0) == size


def test_half_a_reserve_is_none(kept: Reserve, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(descriptor: int, offset: int, length: int) -> None:
        os.ftruncate(descriptor, length // 2)
        raise OSError(28, "No space left on device")

    os.truncate(kept.path, 0)
    monkeypatch.setattr(os, "posix_fallocate", run_out)
    with pytest.raises(OSError, match="No space left"):
        kept.refill()
    assert kept.path.stat().st_size == 0


@pytest.mark.parametrize(("engine", "count"), [("spark", 2), ("sql", 1)])
def test_where_spark_works_on_another_disk_there_is_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, count: int
) -> None:
    monkeypatch.setattr(reserve, "_device", str)
    config = Config(database_path=f"{tmp_path}/chat.db", cleanup=CleanupConfig(engine=engine))
    assert len(reserves(config)) == count


def test_a_server_that_could_not_start_without_it_gives_it_up(
    config: Config, kept: Reserve, free: Callable[[int], None]
) -> None:
    reserve.release_for_start(config)
    assert not kept.missing()
    free(SLACK_BYTES - 1)
    reserve.release_for_start(config)
    assert kept.path.stat().st_size == 0


def test_small_things_have_some_of_it_once(config: Config, kept: Reserve) -> None:
    for _ in range(2):
        kept.release_slack(config.database)
        assert kept.path.stat().st_size == SIZE // 2, "half of a small one"
    large = Reserve(kept.path, 3 * SLACK_BYTES)
    large.refill()
    large.release_slack(config.database)
    assert kept.path.stat().st_blocks * 512 == large.size - SLACK_BYTES
    large.refill()
    assert not large.missing()


def test_small_things_have_nothing_of_it_while_a_run_has_it(config: Config, kept: Reserve) -> None:
    with released_reserve(config), pytest.raises(BlockingIOError):
        kept.release_slack(config.database)
    assert not kept.missing()


def test_what_is_left_of_it_stays_if_it_cannot_be_made_whole(
    config: Config, kept: Reserve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*_: int) -> None:
        raise OSError(28, "No space left on device")

    kept.release_slack(config.database)
    monkeypatch.setattr(os, "posix_fallocate", run_out)
    with pytest.raises(OSError, match="No space left"):
        kept.refill()
    assert kept.path.stat().st_size == SIZE // 2
