"""A bit of a file of the archive is another one, anywhere: a page is right or refused, and lacks no message."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet

from conclave.archive.reader import Archive, ArchiveError
from conclave.health.parts import Health, HealthPart
from conclave.response_memory import Budget
from conclave.retention import stretches, visibility
from conclave.retention.stretches import Stretch
from conclave.store.resources import groups
from conclave.store.resources.messages import StoredMessage
from tests.support import sample
from tests.support.archived import DAY, Store
from tests.support.cleaner import Cleaner
from tests.support.damage import Noise, flip_at, misstate

TAKEN_BACK = 5
MESSAGES = 24


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Store:
    """Two groups with messages in one file; the first lacks one that was taken back, the second none."""
    made = Store(tmp_path, cleaner)
    made.search = Noise()
    for group in (made.add_group(), made.add_group()):
        made.send(group, MESSAGES, size=40)
    made.take_back(1, TAKEN_BACK)
    made.now += 8 * DAY
    made.run()
    return made


@pytest.fixture
async def archive(store: Store) -> AsyncIterator[Archive]:
    opened = Archive(store.config.archive_path, store.config.database, Health())
    yield opened
    await opened.close()


def file_of(store: Store) -> Path:
    [path] = store.config.archive_path.glob("lifetime=*/span=*/*")
    return path


def stretch_of(store: Store, key: int) -> Stretch:
    with store.opened() as connection:
        group = groups.find(connection, store.group_ids[key])
        assert group
        found = stretches.stretch(connection, group, 0, visibility.of_group(connection, group, store.now))
    assert found
    return found


async def page(store: Store, archive: Archive, key: int) -> list[StoredMessage]:
    return (await archive.read(stretch_of(store, key), 100, Budget(100_000_000).share())).messages


@pytest.mark.system
async def test_wherever_a_bit_is_flipped_a_page_is_right_or_refused(store: Store, archive: Archive) -> None:
    """Who reads on after a page that lacks a message never gets it, and counts as having fetched it."""
    right = {key: await page(store, archive, key) for key in (1, 2)}
    numbers = [[each.sequence_num for each in found] for found in right.values()]
    assert numbers == [[n for n in range(1, MESSAGES + 1) if n != TAKEN_BACK], [*range(1, MESSAGES + 1)]]
    path, chance, seen = file_of(store), sample.chance("flipped bits"), Counter[str]()
    content = path.read_bytes()
    for place in chance.choices(range(len(content)), k=sample.amount(5_000, 100)):
        bit = 1 << chance.randrange(8)
        path.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
        key = chance.choice((1, 2))
        try:
            assert await page(store, archive, key) == right[key], f"bit {bit} of the byte {place} of {len(content)}"
            seen["right"] += 1
        except ArchiveError:
            seen["refused"] += 1
    path.write_bytes(content)
    assert min(seen["right"], seen["refused"]) > sample.amount(5_000, 100) // 10, "or nothing was proved"
    await archive.warm_up()
    assert [await page(store, archive, key) for key in right] == [*right.values()]


@pytest.mark.parametrize(("key", "instead"), [(1, 3), (2, 1)])
async def test_what_a_file_says_of_its_rows_passes_over_no_message(store: Store, key: int, instead: int) -> None:
    """Statistics have no checksum. The rows are right, and are served; health says that the file is not."""
    health = Health()
    archive = Archive(store.config.archive_path, store.config.database, health)
    right, path = await page(store, archive, key), file_of(store)
    content = path.read_bytes()
    misstate(path, key, instead)
    assert await page(store, archive, key) == right
    fault = health.faults[HealthPart.ARCHIVE]
    assert "what a file says of messages of the group" in fault
    assert f"in {path.parent.relative_to(store.config.archive_path)}; they are served: see docs/" in fault
    other = 3 - key
    assert len(await page(store, archive, other)) == MESSAGES - (other == 1)
    await archive.warm_up()
    assert HealthPart.ARCHIVE in health.faults, "other reads do not make it right"
    path.write_bytes(content)
    await archive.warm_up()
    assert health.faults == {}
    await archive.close()


async def test_a_message_whose_number_or_group_was_altered_is_not_passed_over(store: Store) -> None:
    """DataFusion compares no page with its checksum, and finds other numbers, or none."""
    health = Health()
    archive = Archive(store.config.archive_path, store.config.database, health)
    right, path = await page(store, archive, 2), file_of(store)
    content, refused = path.read_bytes(), 0
    start = parquet.read_metadata(path).row_group(0).column(0).dictionary_page_offset
    for place in range(start + 30, start + 70, 2):
        flip_at(path, place)
        try:
            assert await page(store, archive, 2) == right, place
        except ArchiveError as error:
            refused += "CRC checksum verification failed" in str(error) and str(error).count("see docs/") == 1
        flip_at(path, place)
    assert refused
    assert path.read_bytes() == content
    await archive.warm_up()
    assert health.faults == {}
    await archive.close()


async def test_a_single_message_is_not_taken_for_erased_by_what_a_file_says(store: Store, archive: Archive) -> None:
    whole = stretch_of(store, 2)
    one = replace(whole, after=6, border=7)
    sent = await archive.find(one)
    assert sent is not None
    path = file_of(store)
    content = path.read_bytes()
    misstate(path, 2, 9)
    assert await archive.find(one) == sent
    path.write_bytes(content)
    said = parquet.read_metadata(path).num_rows
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for place in (at for at in range(footer, len(content) - 8) if content[at] == 2 * said):  # as Thrift writes it
        flip_at(path, place)
        with suppress(ArchiveError):
            assert await archive.find(one) == sent
        flip_at(path, place)


async def test_messages_that_were_erased_are_no_fault(store: Store) -> None:
    health = Health()
    archive = Archive(store.config.archive_path, store.config.database, health)
    assert [each.sequence_num for each in await page(store, archive, 1)][3:5] == [TAKEN_BACK - 1, TAKEN_BACK + 1]
    assert health.faults == {}
    await archive.close()
