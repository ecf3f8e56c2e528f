"""A group's messages as one ordered sequence, of which the older part is in the archive."""

from dataclasses import replace

from conclave.archive.reader import Archive
from conclave.budget import Share
from conclave.clock import Clock
from conclave.retention.policy import PolicySettings
from conclave.store import messages, visibility
from conclave.store.archive import stretches as index
from conclave.store.database import Database
from conclave.store.messages import Page, StoredMessage


async def page(
    store: Database,
    archive: Archive,
    group_id: bytes,
    user_id: bytes,
    after: int,
    limit: int,
    policy: PolicySettings,
    clock: Clock,
    share: Share,
) -> Page:
    """Read a page as ``messages.page`` does, from both tiers. Raises NotMemberError, NoRoomError or ArchiveError.

    The store is asked first: either it has the page, or it says up to which number the archive does, the border.
    What is left of the page then is a page of its own, asked for with the border as ``after``. So no snapshot of the
    store is held while the archive is read, and it does not matter what moves meanwhile: each message is above or below
    the border of the snapshot by which it was looked for, and the next search begins where the last one ended. A border
    that has risen in between makes one more stretch in the archive. Where messages went to other parts of the archive
    before they were read, the search is repeated.

    Reads of the archive wait in line. What expires meanwhile is left out at the moment at which the page is handed on.
    """

    async def look(position: int, served: list[StoredMessage], taken: int) -> Page:
        room = limit - len(served)
        return await store.read(messages.page, group_id, user_id, position, room, policy, clock, share, taken)

    first = found = await look(after, [], 0)
    served, taken, position = [*first.messages], 0, after
    while found.archived:
        claimed = share.claimed
        cold = await archive.read(found.archived, limit - len(served), share, taken)
        if await store.read(index.relaid) == found.archived.relaid:
            served += cold.messages
            taken += sum(len(message.mls_message) for message in cold.messages)
            position = found.archived.border
            if cold.full:
                break
        else:
            share.hold(claimed)
        found = await look(position, served, taken)
        served += found.messages
    sight = visibility.of_group(found.member.group, policy, clock.now())
    current = [message for message in served if sight.admits(message)]
    if served and not current:
        # An empty page would say that nothing follows.
        share.hold(0)
        rest = await page(store, archive, group_id, user_id, served[-1].sequence_num, limit, policy, clock, share)
        return rest if rest.messages else replace(rest, fetched_up_to=first.fetched_up_to)
    last = current[-1].sequence_num if current else 0
    return Page(current, first.member, max(last, first.fetched_up_to))
