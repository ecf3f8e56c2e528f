"""Branches: if members' states diverge, decides which clients rejoin, so that all end in one branch.

The server's group info shows that another branch exists. It begins when a joiner uses the group info of a commit that
came second, or misses a commit that was erased since. No member can prove to a later one which branch is right. So the
order in which members joined decides, which is the same for all. A member without a message from a senior member in its
branch is unconfirmed, and switches. A confirmed member stays, unless a senior member uploads its group info repeatedly.
Only one branch has its group info on the server, so two branches never switch to each other.
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
"""Delay after which a new member switches to a branch with a later epoch."""

SENIOR_DELAY, JUNIOR_DELAY = 3.0, 12.0
"""Delays after which an unconfirmed member switches to a branch whose group info a senior or junior has signed."""

MAX_DOUBLINGS = 3
"""Maximum number of times that the delays double, once with each join."""

SENIOR_REPLACEMENTS = 6
"""Number of times that a client replaces a senior member's group info before it switches to its branch."""

RECHECK_SECONDS = 5.0
"""Delay of the comparison after an upload: another client may have replaced the group info again."""

MAX_UNREADABLE = 8
"""Number of undecryptable messages in an epoch after which a client that has read everything switches."""

PLACEHOLDER_INFO = b"none"
"""A placeholder that is not a group info: no client can join with it."""

LOST = "This device's keys differed from those of the group. It joins again."

FALSE_INFO = (
    "The server's data for new members was wrong: it contained changes that no member has made. It was replaced."
)


class Branches:
    """Compares the server's group infos with the states of groups."""

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
        """Compare the server's group info if that is due. Return whether the check of the group is finished."""
        if agenda.info_at is not None and agenda.info_at <= self._agenda.clock():
            agenda.info_at = None
            try:
                if await self._compare(client, group_id, agenda):
                    return True
            except ClientError:
                agenda.check_info_soon()  # not compared: retry soon
                raise
        if agenda.info_at is None:
            record = self._operations.record(group_id)
            is_calm = agenda.is_settled and record is not None and not record.is_unconfirmed
            agenda.check_info(CHECK_INTERVAL_SECONDS if is_calm else agenda.next_check_delay())
        self._agenda.schedule(group_id, max(0.0, (agenda.info_at or 0.0) - self._agenda.clock()))
        return False

    async def _compare(self, client: "Client", group_id: UUID, agenda: GroupAgenda) -> bool:
        """Compare, and replace a wrong group info. Return whether the check of the group is finished."""
        info = await fetch_group_info(client, group_id)
        header = read_group_info(info)
        record = self._operations.record(group_id)  # after the request, during which messages may be processed
        if record is None or record.stage is not Stage.ACTIVE or record.group is None:
            return True
        mls_group = record.group
        agenda.is_new = agenda.is_new and header is not None and header.epoch >= mls_group.epoch
        if header == GroupInfoHeader(mls_group.group_id, mls_group.epoch, mls_group.confirmation_tag):
            agenda.has_later_messages, agenda.other_epoch = False, None
            if agenda.info_uploaded_epoch != mls_group.epoch:  # otherwise this client uploaded it: it proves nothing
                agenda.unreadable_count, agenda.unreadable_commits = 0, 0
            agenda.is_new = False
            return False
        if header and header.mls_group_id == mls_group.group_id and not self._operations.has_passed(record, header):
            signer = read_signer(info)
            wait = self._switch_delay(record, mls_group, agenda, header, signer)
            if wait is not None and await self._switch(client, group_id, mls_group, agenda, info, header, wait):
                return True
            if header.epoch > mls_group.epoch and not agenda.unreadable_count:  # otherwise it was reported already
                self._news.append(EncryptionNotice(group_id, "refused", FALSE_INFO))
            if signer and signer.identity != self._user_id.bytes:  # otherwise it is an earlier one of this client
                agenda.record_contest()
        agenda.has_later_messages, agenda.other_epoch, agenda.is_new = False, None, False
        agenda.info_uploaded_epoch = mls_group.epoch  # even if the answer is lost
        if info not in {b"", PLACEHOLDER_INFO} and (header is None or header.epoch > mls_group.epoch):
            # The server replaces a group info of a later epoch only with one without an epoch. Until then joiners wait.
            await client.commit(group_id, group_info=PLACEHOLDER_INFO)
        await client.commit(group_id, group_info=mls_group.group_info())
        agenda.check_info(RECHECK_SECONDS)
        return False

    def _switch_delay(
        self,
        record: GroupRecord,
        mls_group: MlsGroup,
        agenda: GroupAgenda,
        header: GroupInfoHeader,
        signer: GroupInfoSigner | None,
    ) -> float | None:
        """Return the delay before this client switches to another branch; None: never."""
        if signer and signer.identity in {each.bytes for each in agenda.unauthorized}:
            return None
        is_credible = signer is not None and self._is_credible(mls_group, agenda, signer)
        is_senior = (
            is_credible and signer is not None and self._operations.is_senior(record, UUID(bytes=signer.identity))
        )
        if record.is_unconfirmed and is_credible:
            if agenda.is_new:
                return NEW_MEMBER_DELAY if header.epoch > mls_group.epoch else 0.0
            return (SENIOR_DELAY if is_senior else JUNIOR_DELAY) * 2.0 ** min(agenda.attempts, MAX_DOUBLINGS)
        is_new = 0 < record.first_epoch == mls_group.epoch
        cannot_read = not agenda.readable_count and agenda.unreadable_count >= (
            1 if is_new or not agenda.has_read_all else MAX_UNREADABLE
        )
        if header.epoch > mls_group.epoch and not (agenda.has_read_past(mls_group.epoch) and agenda.is_complete):
            return 0.0  # the others may be there: fetch the commits first
        if header.epoch >= mls_group.epoch and cannot_read:
            return 0.0  # the others do not follow: their clients may have other rules
        return 0.0 if is_senior and agenda.contested >= SENIOR_REPLACEMENTS else None

    def _is_credible(self, mls_group: MlsGroup, agenda: GroupAgenda, signer: GroupInfoSigner) -> bool:
        """Return whether the signer is another member according to the server's list, with its known key."""
        if len(signer.identity) != ID_BYTES or signer.identity == self._user_id.bytes:
            return False
        member = mls_group.find(signer.identity)
        is_known = member is None or member.signature_key == signer.signature_key
        return is_known and UUID(bytes=signer.identity) in (agenda.listed or ())

    async def _switch(
        self,
        client: "Client",
        group_id: UUID,
        mls_group: MlsGroup,
        agenda: GroupAgenda,
        info: bytes,
        header: GroupInfoHeader,
        wait: float,
    ) -> bool:
        """Wait for commits that lead to another branch, then join it. Return False if the group info is unusable."""
        is_void = agenda.is_new and header.epoch == mls_group.epoch  # another commit came first
        has_waited = (
            not agenda.record_other_epoch(mls_group.epoch) and self._agenda.clock() - agenda.other_epoch_seen_at >= wait
        )
        if is_void or (has_waited and agenda.has_read_past(mls_group.epoch)):
            if self._operations.gives_way(group_id, info):
                return True
            try:
                external_commit = self._operations.join(group_id, info, forget_commits=True)
            except EncryptionError:
                return False
            if not agenda.is_new:
                self._news.append(EncryptionNotice(group_id, "lost", LOST))
            self._news.append(EncryptionChanged(group_id))
            await self._joiner.send_external_commit(client, group_id, external_commit, agenda)
            return True
        agenda.check_info_soon()
        self._agenda.schedule(group_id)
        return True
