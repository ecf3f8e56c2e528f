"""Processes messages in the server's order: application messages, proposals and commits.

If two commits are for the same epoch, the first is applied. A rejected message leaves the state unchanged.
"""

from collections.abc import Callable, Sequence
from uuid import UUID

from conclave.client.codec import Readable
from conclave.client.encryption.agenda import SOON_SECONDS, Agenda
from conclave.client.encryption.groups import AwaitedCommit, GroupRecord, GroupRecords, Stage
from conclave.client.encryption.headers import MessageHeader, read_header
from conclave.client.encryption.people import KnownKeys, user_of
from conclave.client.encryption.texts import NO_EPOCH, UNCONFIRMED_SECONDS, SentText, Texts
from conclave.client.events import EncryptionNotice, KeyChanged, News
from conclave.client.mls import (
    ApplicationMessage,
    CommitApplied,
    ForgedError,
    InvalidError,
    MlsError,
    MlsGroup,
    MlsMember,
    OutdatedStateError,
    OwnMessageError,
    ProposalArrived,
    Received,
    ReplayedError,
    StaleError,
)
from conclave.client.mls.commits import CommitEffect
from conclave.client.mls.errors import DisallowedProposalError
from conclave.client.mls.framing import SenderType
from conclave.client.mls.proposals import Add, Remove
from conclave.client.mls.state import MAX_PAST
from conclave.wire.results import FetchedMessage

MAX_DIGITS = 18
"""Maximum digits of a message's number."""

INFO_UPLOAD_SECONDS = 2.0
"""Maximum time that a client needs to upload its group info after joining."""

REPLACED = (
    "Another device of your account has replaced this one in this group: new messages cannot be read here. /reset"
    " brings this device back with new keys, and removes the other one. If you have no other device, somebody has your"
    " password: change it first."
)

REMOVED = "This member's client has removed the keys of a member from the group."

RESTORED = (
    "The keys on this device are an old copy: newer messages were sent with them. They are not used any more, and this"
    " device joins again."
)


class UnauthorizedChangeError(InvalidError):
    """A change of the group is valid MLS, but its sender is not authorized to make it."""


class MessageProcessor:
    """Processes the messages of groups. ``news``: the list to which news are appended."""

    def __init__(
        self,
        user_id: UUID,
        groups: GroupRecords,
        known_keys: KnownKeys,
        texts: Texts,
        agenda: Agenda,
        news: list[News],
        now: Callable[[], int],
    ) -> None:
        self._user_id, self._now, self._news = user_id, now, news
        self._groups, self._known_keys, self._texts, self._agenda = groups, known_keys, texts, agenda

    def process(self, record: GroupRecord, messages: Sequence[FetchedMessage]) -> list[Readable]:
        """Process a page; return the messages for the user. Within a transaction; the caller saves the record."""
        decrypted = self._texts.decrypted(record)
        readable_messages = []
        for message in messages:
            number = message.sequence_num
            if number in decrypted:
                readable_messages.append(Readable(message, decrypted[number]))
                continue
            if record.up_to and number > record.up_to + 1:
                self.record_gap(record, is_own=self._texts.find_sent(record, message.mls_message) is not None)
            is_own, readable = self._process_own(record, message)
            if not is_own:
                readable = self._process_message(record, message)
            if readable:
                self._texts.keep_decrypted(record, number, readable.text)
                readable_messages.append(readable)
            record.up_to = max(record.up_to, number)
        return readable_messages

    def record_gap(self, record: GroupRecord, *, is_own: bool = False) -> None:
        """Record that messages were erased before they were read here. Within a transaction.

        They may include a commit. At the start, or if the first own text (``is_own``) comes back after them, this
        client may have sent them, and the local keys may be an old copy.
        """
        agenda = self._agenda.group(record.group_id)
        agenda.record_gap(record.group.epoch if record.group else -1)
        if record.stage is not Stage.ACTIVE:
            return
        if not agenda.is_caught_up or (is_own and not agenda.has_sent):
            record.is_doubtful = True
        agenda.check_info_soon(is_own=record.is_doubtful)
        self._agenda.schedule(record.group_id, 0 if record.is_doubtful else SOON_SECONDS)

    def _process_own(self, record: GroupRecord, message: FetchedMessage) -> tuple[bool, Readable | None]:
        """Return whether a message is an own text, and the text, unless it is a resent copy."""
        if message.sender_id != self._user_id or not (own := self._texts.find_sent(record, message.mls_message)):
            return False, None
        if not own.is_kept:  # otherwise it was processed before, with a history in memory
            self._settle_own(record, own, message)
        return True, Readable(message, own.text) if own.original in (0, message.sequence_num) else None

    def _settle_own(self, record: GroupRecord, own: SentText, message: FetchedMessage) -> None:
        """Erase an own text that came back, or keep it if others may be unable to decrypt it."""
        values = own, message.sequence_num, message.self_destruct_seconds
        self._agenda.group(record.group_id).has_sent = True
        self._texts.drop_other_attempts(record, own)
        if not own.text:
            self._texts.drop_sent(own.text_key)
        elif self._is_too_late(record, own) or record.is_doubtful:
            self._texts.keep_for_resend(*values)
        elif not self.is_confirmed(record) or self._now() - record.in_since < UNCONFIRMED_SECONDS:
            self._texts.keep_until_confirmed(*values)
        else:
            self._texts.drop_sent(own.text_key)
        if own.original:
            self._texts.record_repeat(record, own.original, message.sequence_num, is_own=True)
            self._texts.drop_resent(record, own)
        if own.is_to_take_back:
            self._texts.record_unwanted(record, message.sequence_num)

    def is_confirmed(self, record: GroupRecord) -> bool:
        """Return whether the keys are confirmed, without signs of another branch."""
        return not record.is_unconfirmed and self._agenda.group(record.group_id).is_settled

    def _is_too_late(self, record: GroupRecord, own: SentText) -> bool:
        """Return whether a text arrived after its keys expired for all members, or for those who joined since."""
        if own.epoch == NO_EPOCH:
            return True
        if record.group is None or record.stage is not Stage.ACTIVE:
            return False
        return own.epoch < record.entered_epoch or record.group.epoch - own.epoch > MAX_PAST

    def _process_message(self, record: GroupRecord, message: FetchedMessage) -> Readable | None:
        if record.stage is not Stage.ACTIVE or record.group is None:
            self._process_without_keys(record, message)
            return None
        before = record.group.copy()
        try:
            received = record.group.receive(message.mls_message, self._now())
            self._check_sender(before, received, message.sender_id)
            self._check_rights(record, before, received)
            text = received.data.decode() if isinstance(received, ApplicationMessage) else None
        except UnicodeDecodeError:
            return Readable(message, None)  # a member's message, but not UTF-8: its key is used up
        except OutdatedStateError:
            self.drop_outdated_state(record)
            self._process_without_keys(record, message)  # it may be a commit: older group infos must not be used
            return None
        except MlsError as error:
            record.group = before
            return self._handle_rejected(record, before, message, error)
        if isinstance(received, ApplicationMessage):
            self._agenda.group(record.group_id).record_readable(before.epoch, received.epoch)
            self._confirm_by(record, user_of(received.sender))
            original = _read_original(received.authenticated_data, message.sequence_num)
            if self._texts.was_read(record, original, message.sender_id):
                # Recorded, since an admin may take back both.
                self._texts.record_repeat(record, original, message.sequence_num, is_own=False)
                return None
            self._texts.record_read(record, original or message.sequence_num, message.sender_id)
            return Readable(message, text)
        self._apply_change(record, before, received, message)
        return None

    def _check_sender(self, before: MlsGroup, received: Received, sender_id: UUID) -> None:
        """Check that a message is from the sender that the server reports (RFC 9420 section 5.3.1)."""
        if isinstance(received, ApplicationMessage):
            sender = received.sender
        elif isinstance(received, CommitApplied):
            if received.effect is None:
                return
            sender = received.effect.committer
        elif received.sender.sender_type == SenderType.MEMBER:
            sender = before.members()[received.sender.index]
        else:
            return
        if user_of(sender) != sender_id:
            raise InvalidError("it is signed by another member than the server names")

    def _check_rights(self, record: GroupRecord, before: MlsGroup, received: Received) -> None:
        """Check that the sender may change the members, according to the server's current list.

        Admins may make any change. Every member may remove its own leaf and users who are not on the list, and add
        users who are on it: the list may be newer than the change. A proposal is checked when it arrives, against its
        own sender.
        """
        added, removed, author = _membership_changes(before, received)
        agenda = self._agenda.group(record.group_id)
        if author is None or agenda.listed is None or author in agenda.admins:
            return
        if any(user_id in agenda.listed and user_id != author for user_id in removed):
            raise UnauthorizedChangeError("it removes a member, which only an admin may do")
        if not agenda.listed.issuperset(added):
            raise UnauthorizedChangeError("it adds a user who is not a member, which only an admin may do")

    def _apply_change(self, record: GroupRecord, before: MlsGroup, received: Received, message: FetchedMessage) -> None:
        """Update the record after a change of the group."""
        if isinstance(received, ProposalArrived):
            self._agenda.schedule(record.group_id)
            return
        if not isinstance(received, CommitApplied) or received.effect is None:
            return
        agenda, effect = self._agenda.group(record.group_id), received.effect
        record.is_doubtful = False  # messages sent in the former epoch no longer matter
        self._report_removals(record, effect)
        if effect.removed_self or record.group is None or not record.group.is_member:
            self._groups.record_commit(record, record.up_to + 1, before.epoch, b"")
            self._handle_own_removal(record, effect.committer, message)
            return
        for member in (*effect.added, *effect.updated, effect.committer):
            self.record_key(record.group_id, member)
        if received.own:
            record.renewed_at = self._now()
        remaining = {user_of(each) for each in before.members().values()} - {user_of(each) for each in effect.removed}
        is_external_join = user_of(effect.committer) not in remaining
        number = record.up_to + 1
        self._groups.record_commit(record, number, before.epoch, record.group.confirmation_tag)
        self._groups.record_removed(record, map(user_of, effect.removed) if not is_external_join else ())
        for member in (*effect.added, *((effect.committer,) if is_external_join else ())):
            self._record_joiner(record, user_of(member), number)
        by_others = not received.own and not is_external_join
        if by_others:
            self._confirm_by(record, user_of(effect.committer))
        if is_external_join or effect.added:
            record.entered_epoch = record.group.epoch
        if is_external_join or agenda.info_uploaded_epoch == before.epoch:
            # Existing clients upload the group info after their external commit, and the upload may be lost.
            agenda.check_info(INFO_UPLOAD_SECONDS if is_external_join else SOON_SECONDS)
        agenda.record_commit(record.group.epoch, by_others=by_others)
        self._agenda.schedule(record.group_id)

    def _report_removals(self, record: GroupRecord, effect: CommitEffect) -> None:
        """Report removals, except of the committer's own former leaf."""
        committer = user_of(effect.committer)
        for user_id in (user_of(each) for each in effect.removed):
            if user_id != committer:
                self._news.append(EncryptionNotice(record.group_id, "removed", REMOVED, committer, user_id))

    def _record_joiner(self, record: GroupRecord, user_id: UUID, number: int) -> None:
        """Record that a user has joined. A new member must not get earlier texts, not even resent ones."""
        if self._groups.record_joiner(record, user_id, number):
            self._texts.drop_sent_before(record, number)
        self._revoke_confirmation(record, user_id)

    def _revoke_confirmation(self, record: GroupRecord, user_id: UUID) -> None:
        """Revoke a member's confirmation of the keys, since the member has joined again."""
        if record.confirmed_by == user_id.bytes:
            record.confirmed_by = b""

    def _confirm_by(self, record: GroupRecord, user_id: UUID) -> None:
        """Record that a member has the same keys. Only a senior member confirms them."""
        if self.is_senior(record, user_id):
            record.confirmed_by = user_id.bytes
            self._agenda.group(record.group_id).clear_contest()

    def is_senior(self, record: GroupRecord, user_id: UUID) -> bool:
        """Return whether a user joined before this device, or with it."""
        return self._groups.joined_at(record, user_id) <= record.joined_number

    def _record_possible_joiner(self, record: GroupRecord, message: FetchedMessage, header: MessageHeader) -> None:
        """Record the sender of an external commit that was not accepted, which may lead into another branch.

        The commit is unchecked, so no texts are erased: a client that enters that branch sees its members (``enter``).
        The server authenticates only the sender, not the users whom the commit adds.
        """
        if header.is_external and message.sender_id != self._user_id:
            self._groups.record_joiner(record, message.sender_id, message.sequence_num, is_claimed=True)
            self._revoke_confirmation(record, message.sender_id)

    def _handle_own_removal(self, record: GroupRecord, committer: MlsMember, message: FetchedMessage) -> None:
        """Handle a commit that removes the user: rejoin, unless another device of the account has replaced this one.

        Otherwise two devices would replace each other endlessly. An own external commit that was abandoned for a
        Welcome is not from another device.
        """
        if user_of(committer) == self._user_id:
            header = read_header(message.mls_message)
            if header is None or not self._groups.is_own_join_commit(record, header.tag):
                self.mark_replaced(record)
                return
        self.drop_state(record)
        self._agenda.schedule(record.group_id)

    def drop_state(self, record: GroupRecord, stage: Stage = Stage.WITHOUT_KEYS) -> None:
        """Drop the state of a group, and mark its texts for resending. Within a transaction."""
        record.drop_state(stage)
        self._texts.mark_keys_lost(record)

    def mark_replaced(self, record: GroupRecord) -> None:
        """Record that another device of the account has replaced this one. Within a transaction."""
        self.drop_state(record, Stage.REPLACED)
        self._news.append(EncryptionNotice(record.group_id, "replaced", REPLACED))

    def drop_outdated_state(self, record: GroupRecord) -> None:
        """Drop a state that is an old copy, since it would use message keys twice. Within a transaction."""
        self.drop_state(record)
        self._news.append(EncryptionNotice(record.group_id, "restored", RESTORED))
        self._agenda.schedule(record.group_id)

    def record_key(self, group_id: UUID, member: MlsMember) -> None:
        """Record a member's key, and report a change."""
        if changed_key := self._known_keys.record_key(member):
            self._news.append(
                KeyChanged(
                    group_id, changed_key.user_id, changed_key.former, changed_key.fingerprint, changed_key.was_verified
                )
            )

    # Rejected messages

    def _handle_rejected(
        self, record: GroupRecord, group: MlsGroup, message: FetchedMessage, error: MlsError
    ) -> Readable | None:
        header = read_header(message.mls_message)
        unreadable = Readable(message, None)
        if header is None:
            return self._report_refused(record, message, "it is not encrypted, or malformed")
        agenda = self._agenda.group(record.group_id)
        self._record_possible_joiner(record, message, header)
        if header.is_commit and message.sender_id != self._user_id:
            agenda.record_conflict()
        if isinstance(error, StaleError):
            return self._handle_other_epoch(record, group, message, header)
        if isinstance(error, ReplayedError):
            return None if message.sequence_num <= record.up_to else self._report_refused(record, message, str(error))
        if isinstance(error, (UnauthorizedChangeError, DisallowedProposalError)):  # this client's keys are valid
            agenda.unauthorized.add(message.sender_id)
            self._agenda.schedule(record.group_id)
            return self._report_refused(record, message, str(error))
        if isinstance(error, OwnMessageError):
            return unreadable if header.is_application else None
        is_foreign = isinstance(error, ForgedError) or header.is_application
        agenda.record_unreadable(group.epoch, is_foreign=is_foreign)
        self._agenda.schedule(record.group_id)
        if message.sender_id == self._user_id:
            return unreadable if header.is_application else None
        if isinstance(error, ForgedError) and group.find(message.sender_id.bytes) is None:
            return None  # not forged: the sender is in another branch, will rejoin, and resend it
        return self._report_refused(record, message, str(error))

    def _handle_other_epoch(
        self, record: GroupRecord, group: MlsGroup, message: FetchedMessage, header: MessageHeader
    ) -> Readable | None:
        """Handle a message of an earlier or a later epoch."""
        agenda = self._agenda.group(record.group_id)
        if header.epoch > group.epoch:
            agenda.check_info_soon()
            agenda.has_later_messages = agenda.has_later_messages or not agenda.is_complete
            if agenda.has_read_all and not header.is_application:
                self._agenda.schedule(record.group_id)
                return self._report_refused(record, message, "it is for an epoch that the group has not reached")
            if header.is_application:
                self._agenda.schedule(record.group_id)
                return Readable(message, None)
        elif not header.is_application:
            agenda.check_info_soon(is_own=message.sender_id == self._user_id)
        elif header.epoch >= record.first_epoch:
            return Readable(message, None)
        elif record.is_unconfirmed:
            agenda.check_info_soon()  # the message is late, or the others are in another epoch
        self._agenda.schedule(record.group_id)
        return None

    def _report_refused(self, record: GroupRecord, message: FetchedMessage, reason: str) -> Readable | None:
        """Report a rejected message; return None."""
        sentence = f"A message that claims to be from this member was rejected: {reason}."
        self._news.append(EncryptionNotice(record.group_id, "refused", sentence, message.sender_id))
        return None

    # Without keys

    def _process_without_keys(self, record: GroupRecord, message: FetchedMessage) -> None:
        """Process a message without keys: record a commit, or count a message that cannot be decrypted."""
        header = read_header(message.mls_message)
        if header is None or not header.is_commit:
            record.missed += message.sender_id != self._user_id and (header is None or header.is_application)
            return
        self._record_possible_joiner(record, message, header)
        self._groups.record_commit(record, message.sequence_num, header.epoch, header.tag)
        if record.stage is Stage.AWAITING:
            self.resolve_awaited(record)

    def skip_messages(self, record: GroupRecord, messages: Sequence[FetchedMessage]) -> None:
        """Drop the keys, and process messages without them. Within a transaction."""
        self.drop_state(record)
        for message in messages:
            self._process_without_keys(record, message)
            record.up_to = max(record.up_to, message.sequence_num)

    def resolve_awaited(self, record: GroupRecord) -> None:
        """Enter the group if the awaited commit is the first of its epoch. Within a transaction.

        If another commit came first, the awaited one is void, and the user has to join again.
        """
        first = self._groups.first_commit(record, record.awaited.epoch)
        if first is None or record.group is None:
            return
        # A commit that came second leaves its group info on the server: joining with it leads into an empty branch.
        base = record.base_tag
        known_tag = self._groups.commit_into(record, record.awaited.epoch) if base else None
        number, tag = first
        if tag == record.awaited.tag and tag and known_tag in (None, base):
            self.enter(record, number)
        else:
            self.drop_state(record)
        self._agenda.schedule(record.group_id)

    def enter(self, record: GroupRecord, number: int = 0) -> None:
        """Make the state active: the user has the keys.

        ``number``: the number of the commit that led here; 0: the user has created the group.
        """
        assert record.group is not None  # noqa: S101 - the caller has set it
        record.joined_number, record.confirmed_by = number, b"" if number else self._user_id.bytes
        record.in_since = self._now() if number else 0
        self._groups.forget_commits(record)
        self._groups.record_commit(record, number, record.group.epoch - 1, record.group.confirmation_tag)
        record.stage, record.awaited, record.first_epoch = Stage.ACTIVE, AwaitedCommit(0, b""), record.group.epoch
        record.entered_epoch = record.first_epoch
        members = record.group.members().values()
        for member in members:
            self.record_key(record.group_id, member)
        self._texts.drop_sent_before(record, self._groups.record_present(record, map(user_of, members), number))
        if record.missed:
            self._news.append(_missed_notice(record))
        record.missed, record.had_keys = 0, True
        agenda = self._agenda.group(record.group_id)
        agenda.record_entry(record.group.epoch, is_new=number > 0)
        agenda.check_info_soon(is_own=True)
        self._agenda.schedule(record.group_id)


def _membership_changes(before: MlsGroup, received: Received) -> tuple[list[UUID], list[UUID], UUID | None]:
    """Return the users that a message adds and removes, and the user who must be authorized, or None."""
    if isinstance(received, CommitApplied) and received.effect and not received.own:
        effect = received.effect
        added = [user_of(each) for each in effect.added if each not in effect.proposed]
        removed = [user_of(each) for each in effect.removed if each not in effect.proposed]
        return added, removed, user_of(effect.committer)
    if isinstance(received, ProposalArrived) and received.sender.sender_type == SenderType.MEMBER:
        members, proposal = before.members(), received.proposal
        added = [UUID(bytes=proposal.key_package.leaf_node.credential.identity)] if isinstance(proposal, Add) else []
        removed_member = members.get(proposal.removed) if isinstance(proposal, Remove) else None
        return added, [user_of(removed_member)] if removed_member else [], user_of(members[received.sender.index])
    return [], [], None


_RESENT_PREFIX = b"again "


def encode_original(original: int) -> bytes:
    """Return the authenticated data of a resent text: the number of its first message."""
    return _RESENT_PREFIX + str(original).encode()


def _read_original(authenticated_data: bytes, number: int) -> int:
    """Return the number of the original of a resent text, less than ``number``; 0 if it is not resent."""
    digits = authenticated_data.removeprefix(_RESENT_PREFIX)
    if digits == authenticated_data or not digits.isdigit() or len(digits) > MAX_DIGITS:
        return 0
    return original if (original := int(digits)) < number else 0


def _missed_notice(record: GroupRecord) -> EncryptionNotice:
    count = f"{record.missed:,} message" + ("s" if record.missed != 1 else "")
    if record.had_keys:
        sentence = f"You have rejoined with new keys: {count} from the time without keys cannot be read."
        return EncryptionNotice(record.group_id, "returned", sentence)
    return EncryptionNotice(record.group_id, "joined", f"You have joined: {count} from before cannot be read.")
