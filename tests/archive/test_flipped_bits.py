"""A bit of a file of the archive is another one, anywhere: a page is right or refused, and lacks no message."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet

from conclave.archive.reader import Archive, ArchiveError
from conclave.config.archive import ArchiveConfig
from conclave.config.cleanup import CleanupConfig
from conclave.health.parts import Health, HealthPart
from conclave.store import keyring
from conclave.store.resources.messages import MessageRow
from tests.support import sample
from tests.support.archived import DAY, Store
from tests.support.cleaner import Cleaner
from tests.support.damage import flip_at, misstate
from tests.support.keyed import clean

TAKEN_BACK = 5
MESSAGES = 24


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Store:
    """Two groups with messages in one file; the first lacks one that was taken back, the second none."""
    made = Store(tmp_path, cleaner)
    for group in (made.add_group(), made.add_group()):
        made.send(group, MESSAGES, size=40)
    made.take_back(1, TAKEN_BACK)
    made.now += 8 * DAY
    # One run erases; then the next has only what moves, which needs no Java.
    for engine, archive in (("sql", ArchiveConfig()), ("spark", made.config.archive)):
        cleanup = CleanupConfig(engine=engine, disk_reserve=0)
        made.config = replace(made.config, cleanup=cleanup, archive=archive)
        clean(made)
    return made


@asynccontextmanager
async def opened(store: Store, health: Health | None = None) -> AsyncIterator[Archive]:
    with closing(keyring.open_to_serve(store.config.database, store.config.keys_path)) as keys:
        archive = Archive(store.config.archive_path, store.config.database, health or Health(), keys)
        try:
            yield archive
        finally:
            await archive.close()


def file_of(store: Store) -> Path:
    [path] = store.config.archive_path.glob("lifetime=*/span=*/*")
    return path


async def page(store: Store, archive: Archive, key: int) -> list[MessageRow]:
    return (await archive.read(store.stretch(key), 100)).messages


@pytest.mark.system
@pytest.mark.parametrize("is_open", [False, True])
async def test_wherever_a_bit_is_flipped_a_page_is_right_or_refused(store: Store, *, is_open: bool) -> None:
    """Who reads on after a page that lacks a message never gets it, and counts as having fetched it.

    ``is_open``: the reader has come to the file before, and may remember what that says of itself.
    """
    async with opened(store) as known:
        right = {key: await page(store, known, key) for key in (1, 2)}
        numbers = [[each.sequence_num for each in found] for found in right.values()]
        assert numbers == [[n for n in range(1, MESSAGES + 1) if n != TAKEN_BACK], [*range(1, MESSAGES + 1)]]
        path, chance, seen = file_of(store), sample.chance("flipped bits"), Counter[str]()
        content, tries = path.read_bytes(), sample.amount(4_000, 100)
        footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        for _ in range(tries):
            place = chance.choice([chance.randrange(footer), chance.randrange(footer, len(content))])
            bit, key = 1 << chance.randrange(8), chance.choice((1, 2))
            path.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
            async with nullcontext(known) if is_open else opened(store) as archive:
                try:
                    assert await page(store, archive, key) == right[key], f"bit {bit} of the byte {place} of {footer}"
                    seen["right"] += 1
                except ArchiveError:
                    seen["refused"] += 1
                path.write_bytes(content)
                await archive.warm_up()
                assert await page(store, archive, key) == right[key], f"after bit {bit} of the byte {place} of {footer}"
        assert min(seen["right"], seen["refused"]) > tries // 10, "or nothing was proved"


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(("key", "instead"), [(1, 3), (2, 1)])
async def test_what_a_file_says_of_its_rows_passes_over_no_message(
    store: Store, key: int, instead: int, *, is_open: bool
) -> None:
    """Statistics have no checksum. The rows are right, and are served; health says that the file is not."""
    health, path = Health(), file_of(store)
    content = path.read_bytes()
    async with opened(store) as other:
        right = await page(store, other, key)
    async with opened(store, health) as archive:
        if is_open:
            await archive.warm_up()
        misstate(path, key, instead)
        assert await page(store, archive, key) == right
        fault = health.faults[HealthPart.ARCHIVE]
        assert "a file has damaged statistics for messages of the group" in fault
        assert f"in {path.parent.relative_to(store.config.archive_path)}; the messages are served: see docs/" in fault
        assert len(await page(store, archive, 3 - key)) in (MESSAGES, MESSAGES - 1)
        await archive.warm_up()
        assert fault in health.faults[HealthPart.ARCHIVE], "other reads do not make it right"
        path.write_bytes(content)
        await archive.warm_up()
        assert health.faults == {}
        assert await page(store, archive, key) == right


async def test_a_message_whose_number_or_group_was_altered_is_not_passed_over(store: Store) -> None:
    """DataFusion compares no page with its checksum, and finds other numbers, or none."""
    health, path, refused = Health(), file_of(store), 0
    start = parquet.read_metadata(path).row_group(0).column(0).dictionary_page_offset
    async with opened(store, health) as archive:
        right = await page(store, archive, 2)
        for place in range(start + 30, start + 70, 2):
            flip_at(path, place)
            try:
                assert await page(store, archive, 2) == right, place
            except ArchiveError as error:
                refused += "CRC checksum verification failed" in str(error) and str(error).count("see docs/") == 1
            flip_at(path, place)
        assert refused
        await archive.warm_up()
        assert health.faults == {}


async def test_a_single_message_is_not_taken_for_erased_nor_for_anothers(store: Store) -> None:
    one, path = replace(store.stretch(2), after=6, border=7), file_of(store)
    content = path.read_bytes()
    async with opened(store) as archive:
        sent = await archive.find(one)
        assert sent is not None
        for place in range(4, 300, 7):
            flip_at(path, place)
            with suppress(ArchiveError):
                assert await archive.find(one) == sent
            flip_at(path, place)
        misstate(path, 2, 9)
        assert await archive.find(one) == sent
        path.write_bytes(content)
        await archive.warm_up()
        assert await archive.find(one) == sent


async def test_each_of_several_damaged_groups_is_a_fault_until_it_is_right_again(store: Store) -> None:
    health, path = Health(), file_of(store)
    async with opened(store, health) as archive:
        bodies = {key: store.at_rest[store.made[key, MESSAGES]] for key in (1, 2)}
        content = path.read_bytes()
        places = {key: content.index(body) + 20 for key, body in bodies.items()}
        for key, place in places.items():
            flip_at(path, place)
            with pytest.raises(ArchiveError):
                await page(store, archive, key)
        assert health.faults[HealthPart.ARCHIVE].count("is damaged") == 2
        flip_at(path, places[1])
        with pytest.raises(ArchiveError, match="is damaged"):
            await archive.warm_up()
        assert health.faults[HealthPart.ARCHIVE].count("is damaged") == 1
        flip_at(path, places[2])
        await archive.warm_up()
        assert health.faults == {}


async def test_messages_that_were_erased_are_no_fault(store: Store) -> None:
    health = Health()
    async with opened(store, health) as archive:
        assert [each.sequence_num for each in await page(store, archive, 1)][3:5] == [TAKEN_BACK - 1, TAKEN_BACK + 1]
    assert health.faults == {}
