"""Branches: where members' keys have come apart, whose client comes in again, so that all end in one.

The group info at the server, by which joiners come in, shows that there is another branch: a joiner used one of a
commit that lost, or has missed a commit that was erased since. No member can prove to a later one which branch is
right. So it is decided by what all see alike: the order in which members came in. A member who has read no earlier
member's message in its branch is unsure, and gives way; one who has read one stays, unless an earlier member insists.
Only one branch has its group info at the server, so two never give way to each other.
"""

from typing import TYPE_CHECKING
from uuid import UUID

from conclave.client.encryption.agenda import CHECK_INTERVAL_SECONDS, Agenda, GroupAgenda
from conclave.client.encryption.groups import GroupRecord, Stage
from conclave.client.encryption.headers import GroupInfoHeader, GroupInfoSigner, read_group_info, read_signer
from conclave.client.encryption.joining import GroupJoiner, GroupOperations, fetch_group_info
from conclave.client.encryption.people import ID_BYTES
from conclave.client.errors import ClientError, EncryptionError
from conclave.client.events import EncryptionChanged, EncryptionNotice, News
from conclave.client.mls import MlsGroup

if TYPE_CHECKING:
    from conclave.client.api import Client

NEW_MEMBER_DELAY = 0.5
"""Who has just come in gives way so soon to a branch that is ahead, if what leads there does not come."""

SENIOR_DELAY, JUNIOR_DELAY = 3.0, 12.0
"""Who is unsure gives way to another branch after so long, of somebody who was there before, or who came in later."""

MAX_DOUBLINGS = 3
"""After twice as long each time that it has come in, up to eight times."""

SENIOR_REPLACEMENTS = 6
"""What was replaced so often, and comes back, is insisted on by somebody who was there before."""

RECHECK_SECONDS = 5.0
"""What was put right at the server is looked at again after five seconds: others may have done so the other way."""

MAX_UNREADABLE = 8
"""Who has read all, but cannot read what the others say: after eight messages in an epoch it is this client's fault."""

PLACEHOLDER_INFO = b"none"
"""What is no group info: no client comes in by it."""

LOST = "This device had lost its way among the keys of this group, and comes in again."

FALSE_INFO = (
    "What the server had for those who come in was false: it told of changes that nobody has made. It was replaced."
)


class Branches:
    """Compares the group infos of the server with the states of groups."""

    def __init__(
        self, operations: GroupOperations, joiner: GroupJoiner, agenda: Agenda, user_id: UUID, news: list[News]
    ) -> None:
        self._operations, self._joiner, self._agenda, self._user_id, self._news = (
            operations,
            joiner,
            agenda,
            user_id,
            news,
        )

    async def check(self, client: "Client", group_id: UUID, agenda: GroupAgenda) -> bool:
        """Compare the group info of the server when it is time to. Tell whether to stop here."""
        if agenda.info_at is not None and agenda.info_at <= self._agenda.clock():
            agenda.info_at = None
            try:
                if await self._compare(client, group_id, agenda):
                    return True
            except ClientError:
                agenda.check_info_soon()  # nothing was compared: look again soon, not with the next round
                raise
        if agenda.info_at is None:
            record = self._operations.record(group_id)
            is_calm = agenda.is_settled and record is not None and not record.is_unconfirmed
            agenda.check_info(CHECK_INTERVAL_SECONDS if is_calm else agenda.next_check_delay())
        self._agenda.schedule(group_id, max(0.0, (agenda.info_at or 0.0) - self._agenda.clock()))
        return False

    async def _compare(self, client: "Client", group_id: UUID, agenda: GroupAgenda) -> bool:
        """Compare, and mend what is wrong. Tell whether to stop here."""
        info = await fetch_group_info(client, group_id)
        header = read_group_info(info)
        record = self._operations.record(
            group_id
        )  # only now: messages may have been read while the answer was on its way
        if record is None or record.stage is not Stage.ACTIVE or record.group is None:
            return True
        ours = record.group
        agenda.is_new = agenda.is_new and header is not None and header.epoch >= ours.epoch
        if header == GroupInfoHeader(ours.group_id, ours.epoch, ours.confirmation_tag):
            agenda.has_later_messages, agenda.other_epoch = False, None
            if agenda.info_uploaded_epoch != ours.epoch:  # or it says only what this client has said
                agenda.unreadable_count, agenda.unreadable_commits = 0, 0
            agenda.is_new = False
            return False
        if header and header.mls_group_id == ours.group_id and not self._operations.has_passed(record, header):
            signer = read_signer(info)
            wait = self._switch_delay(record, ours, agenda, header, signer)
            if wait is not None and await self._switch(client, group_id, ours, agenda, info, header, wait):
                return True
            if header.epoch > ours.epoch and not agenda.unreadable_count:  # or what was refused has told it already
                self._news.append(EncryptionNotice(group_id, "refused", FALSE_INFO))
            if signer and signer.identity != self._user_id.bytes:  # or it is what this client told before it lost
                agenda.record_contest()
        agenda.has_later_messages, agenda.other_epoch, agenda.is_new = False, None, False
        agenda.info_uploaded_epoch = ours.epoch  # also where the answer is lost
        if info not in {b"", PLACEHOLDER_INFO} and (header is None or header.epoch > ours.epoch):
            # The server replaces what says a later epoch only by what says none. Joiners wait meanwhile.
            await client.commit(group_id, group_info=PLACEHOLDER_INFO)
        await client.commit(group_id, group_info=ours.group_info())
        agenda.check_info(RECHECK_SECONDS)
        return False

    def _switch_delay(
        self,
        record: GroupRecord,
        ours: MlsGroup,
        agenda: GroupAgenda,
        header: GroupInfoHeader,
        signer: GroupInfoSigner | None,
    ) -> float | None:
        """Return how long another branch has to stay before this client gives way to it; None: it does not."""
        if signer and signer.identity in {each.bytes for each in agenda.unauthorized}:
            return None
        is_credible = signer is not None and self._is_credible(ours, agenda, signer)
        is_senior = (
            is_credible and signer is not None and self._operations.is_senior(record, UUID(bytes=signer.identity))
        )
        if record.is_unconfirmed and is_credible:
            if agenda.is_new:
                return NEW_MEMBER_DELAY if header.epoch > ours.epoch else 0.0
            return (SENIOR_DELAY if is_senior else JUNIOR_DELAY) * 2.0 ** min(agenda.attempts, MAX_DOUBLINGS)
        is_new = 0 < record.first_epoch == ours.epoch
        cannot_read = not agenda.readable_count and agenda.unreadable_count >= (
            1 if is_new or not agenda.has_read_all else MAX_UNREADABLE
        )
        if header.epoch > ours.epoch and not (agenda.has_read_past(ours.epoch) and agenda.is_complete):
            return 0.0  # the others may be there: what leads there is fetched first
        if header.epoch >= ours.epoch and cannot_read:
            return 0.0  # nobody else followed: others may have other rules than those here
        return 0.0 if is_senior and agenda.contested >= SENIOR_REPLACEMENTS else None

    def _is_credible(self, ours: MlsGroup, agenda: GroupAgenda, signer: GroupInfoSigner) -> bool:
        """Tell whether who speaks for another branch is another member by the server's list, with the known key."""
        if len(signer.identity) != ID_BYTES or signer.identity == self._user_id.bytes:
            return False
        member = ours.find(signer.identity)
        is_known = member is None or member.signature_key == signer.signature_key
        return is_known and UUID(bytes=signer.identity) in (agenda.listed or ())

    async def _switch(
        self,
        client: "Client",
        group_id: UUID,
        ours: MlsGroup,
        agenda: GroupAgenda,
        info: bytes,
        header: GroupInfoHeader,
        wait: float,
    ) -> bool:
        """Fetch what may lead to another branch; if it does not come, come in there. False: nobody can by it."""
        is_void = agenda.is_new and header.epoch == ours.epoch  # another commit came first: nothing leads on from here
        is_over = (
            not agenda.record_other_epoch(ours.epoch) and self._agenda.clock() - agenda.other_epoch_seen_at >= wait
        )
        if is_void or (is_over and agenda.has_read_past(ours.epoch)):
            if self._operations.gives_way(group_id, info):
                return True
            try:
                joining = self._operations.join(group_id, info, anew=True)
            except EncryptionError:
                return False
            if not agenda.is_new:
                self._news.append(EncryptionNotice(group_id, "lost", LOST))
            self._news.append(EncryptionChanged(group_id))
            await self._joiner.send_external_commit(client, group_id, joining, agenda)
            return True
        agenda.check_info_soon()
        self._agenda.schedule(group_id)
        return True
