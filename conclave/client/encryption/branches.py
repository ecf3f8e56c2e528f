"""Branches: where members' keys have come apart, whose client comes in again, so that all end in one.

The group info at the server, by which joiners come in, shows that there is another branch: a joiner used one of a
commit that lost, or has missed a commit that was erased since. No member can prove to a later one which branch is
right. So it is decided by what all see alike: the order in which members came in. A member who has read no earlier
member's message in its branch is unsure, and gives way; one who has read one stays, unless an earlier member insists.
Only one branch has its group info at the server, so two never give way to each other.
"""

from typing import TYPE_CHECKING
from uuid import UUID

from conclave.client.encryption.agenda import ROUND_SECONDS, Agenda, GroupAgenda
from conclave.client.encryption.coming_in import ComingIn, Keys, fetch_info
from conclave.client.encryption.groups import Held, Stage
from conclave.client.encryption.headers import InfoHeader, Signer, read_info, signer_of
from conclave.client.encryption.people import ID_BYTES
from conclave.client.errors import ClientError, EncryptionError
from conclave.client.events import EncryptionChanged, EncryptionNotice, News
from conclave.client.mls import Group as MlsGroup

if TYPE_CHECKING:
    from conclave.client.api import Client

NEW_SECONDS = 0.5
"""Who has just come in gives way so soon to a branch that is ahead, if what leads there does not come."""

SENIOR_SECONDS, JUNIOR_SECONDS = 3.0, 12.0
"""Who is unsure gives way to another branch after so long, of somebody who was there before, or who came in later."""

MOST_DOUBLINGS = 3
"""After twice as long each time that it has come in, up to eight times."""

SENIOR_RETURNS = 6
"""What was replaced so often, and comes back, is insisted on by somebody who was there before."""

CHECKED_AGAIN = 5.0
"""What was put right at the server is looked at again after five seconds: others may have done so the other way."""

MANY = 8
"""Who has read all, but cannot read what the others say: after eight messages in an epoch it is this client's fault."""

NO_INFO = b"none"
"""What is no group info: no client comes in by it."""

LOST = "This device had lost its way among the keys of this group, and comes in again."

FALSE_INFO = (
    "What the server had for those who come in was false: it told of changes that nobody has made. It was replaced."
)


class Branches:
    """Compares the group infos of the server with the states of groups."""

    def __init__(self, keys: Keys, entry: ComingIn, agenda: Agenda, user_id: UUID, news: list[News]) -> None:
        self._keys, self._entry, self._agenda, self._user_id, self._news = keys, entry, agenda, user_id, news

    async def check(self, client: "Client", group_id: UUID, agenda: GroupAgenda) -> bool:
        """Compare the group info of the server when it is time to. Tell whether to stop here."""
        if agenda.info_at is not None and agenda.info_at <= self._agenda.clock():
            agenda.info_at = None
            try:
                if await self._compare(client, group_id, agenda):
                    return True
            except ClientError:
                agenda.doubt_info()  # nothing was compared: look again soon, not with the next round
                raise
        if agenda.info_at is None:
            held = self._keys.held(group_id)
            is_calm = agenda.is_settled and held is not None and not held.is_unsure
            agenda.check_info(ROUND_SECONDS if is_calm else agenda.next_look())
        self._agenda.want(group_id, max(0.0, (agenda.info_at or 0.0) - self._agenda.clock()))
        return False

    async def _compare(self, client: "Client", group_id: UUID, agenda: GroupAgenda) -> bool:
        """Compare, and mend what is wrong. Tell whether to stop here."""
        info = await fetch_info(client, group_id)
        header = read_info(info)
        held = self._keys.held(group_id)  # only now: messages may have been read while the answer was on its way
        if held is None or held.stage is not Stage.IN or held.group is None:
            return True
        ours = held.group
        agenda.is_new = agenda.is_new and header is not None and header.epoch >= ours.epoch
        if header == InfoHeader(ours.group_id, ours.epoch, ours.confirmation_tag):
            agenda.ahead, agenda.claimed = False, None
            if agenda.uploaded_at_epoch != ours.epoch:  # or it says only what this client has said
                agenda.bad, agenda.bad_commits = 0, 0
            agenda.is_new = False
            return False
        if header and header.mls_group_id == ours.group_id and not self._keys.is_passed(held, header):
            signer = signer_of(info)
            wait = self._patience(held, ours, agenda, header, signer)
            if wait is not None and await self._give_way(client, group_id, ours, agenda, info, header, wait):
                return True
            if header.epoch > ours.epoch and not agenda.bad:  # or what was refused has told it already
                self._news.append(EncryptionNotice(group_id, "refused", FALSE_INFO))
            if signer and signer.identity != self._user_id.bytes:  # or it is what this client told before it lost
                agenda.contest()
        agenda.ahead, agenda.claimed, agenda.is_new = False, None, False
        agenda.uploaded_at_epoch = ours.epoch  # also where the answer is lost
        if info not in {b"", NO_INFO} and (header is None or header.epoch > ours.epoch):
            # The server replaces what says a later epoch only by what says none. Joiners wait meanwhile.
            await client.commit(group_id, group_info=NO_INFO)
        await client.commit(group_id, group_info=ours.group_info())
        agenda.check_info(CHECKED_AGAIN)
        return False

    def _patience(
        self, held: Held, ours: MlsGroup, agenda: GroupAgenda, header: InfoHeader, signer: Signer | None
    ) -> float | None:
        """Return how long another branch has to stay before this client gives way to it; None: it does not."""
        if signer and signer.identity in {each.bytes for each in agenda.without_right}:
            return None
        is_credible = signer is not None and self._is_credible(ours, agenda, signer)
        is_senior = is_credible and signer is not None and self._keys.is_senior(held, UUID(bytes=signer.identity))
        if held.is_unsure and is_credible:
            if agenda.is_new:
                return NEW_SECONDS if header.epoch > ours.epoch else 0.0
            return (SENIOR_SECONDS if is_senior else JUNIOR_SECONDS) * 2.0 ** min(agenda.attempts, MOST_DOUBLINGS)
        is_new = 0 < held.first_epoch == ours.epoch
        cannot_read = not agenda.good and agenda.bad >= (1 if is_new or not agenda.has_read_all else MANY)
        if header.epoch > ours.epoch and not (agenda.has_followed(ours.epoch) and agenda.knows_all):
            return 0.0  # the others may be there: what leads there is fetched first
        if header.epoch >= ours.epoch and cannot_read:
            return 0.0  # nobody else followed: others may have other rules than those here
        return 0.0 if is_senior and agenda.contested >= SENIOR_RETURNS else None

    def _is_credible(self, ours: MlsGroup, agenda: GroupAgenda, signer: Signer) -> bool:
        """Tell whether who speaks for another branch is another member by the server's list, with the known key."""
        if len(signer.identity) != ID_BYTES or signer.identity == self._user_id.bytes:
            return False
        member = ours.find(signer.identity)
        is_known = member is None or member.signature_key == signer.signature_key
        return is_known and UUID(bytes=signer.identity) in (agenda.listed or ())

    async def _give_way(
        self,
        client: "Client",
        group_id: UUID,
        ours: MlsGroup,
        agenda: GroupAgenda,
        info: bytes,
        header: InfoHeader,
        wait: float,
    ) -> bool:
        """Fetch what may lead to another branch; if it does not come, come in there. False: nobody can by it."""
        is_void = agenda.is_new and header.epoch == ours.epoch  # another commit came first: nothing leads on from here
        is_over = not agenda.claims(ours.epoch) and self._agenda.clock() - agenda.claimed_at >= wait
        if is_void or (is_over and agenda.has_followed(ours.epoch)):
            if self._keys.gives_way(group_id, info):
                return True
            try:
                joining = self._keys.join(group_id, info, anew=True)
            except EncryptionError:
                return False
            if not agenda.is_new:
                self._news.append(EncryptionNotice(group_id, "lost", LOST))
            self._news.append(EncryptionChanged(group_id))
            await self._entry.ask(client, group_id, joining, agenda)
            return True
        agenda.doubt_info()
        self._agenda.want(group_id)
        return True
