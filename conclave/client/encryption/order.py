"""Reads what the server hands out, in its order: messages, and the commits that change whose keys can read them.

Of two commits for one epoch the first counts. Nothing that is refused leaves a trace in the state.
"""

from collections.abc import Callable, Sequence
from uuid import UUID

from conclave.client.codec import Readable
from conclave.client.encryption.agenda import SOON, Agenda
from conclave.client.encryption.groups import Awaited, Groups, Held, Stage
from conclave.client.encryption.headers import Header, read_header
from conclave.client.encryption.people import People, user_of
from conclave.client.encryption.texts import NO_EPOCH, UNSURE_SECONDS, OwnText, Texts
from conclave.client.events import EncryptionNotice, KeyChanged, News
from conclave.client.mls import (
    ApplicationMessage,
    CommitApplied,
    ForgedError,
    Group,
    InvalidError,
    Member,
    MlsError,
    NotFromHereError,
    OwnMessageError,
    ProposalArrived,
    Received,
    ReplayedError,
    StaleError,
)
from conclave.client.mls.commits import Effect
from conclave.client.mls.errors import UnwantedError
from conclave.client.mls.framing import SenderType
from conclave.client.mls.proposals import Add, Remove
from conclave.client.mls.state import MAX_PAST
from conclave.wire.results import FetchedMessage

LONGEST_NUMBER = 18
"""Digits of a message's number."""

INFO_FOLLOWS = 2.0
"""A client that came in has uploaded its group info within two seconds."""

REPLACED = (
    "Another device has taken the place of this one in this group, under your name: what is said now cannot be read"
    " here. /reset brings this device back with new keys, and puts the other one out. If you have no other device,"
    " somebody has your password: change it first."
)

REMOVED = "This member's client has taken the keys of a member out of the group."

RESTORED = (
    "The keys on this device are an old copy: more was sent with them than they know of. They are not used any more,"
    " and this device comes in again."
)


class NoRightError(InvalidError):
    """A change of the group is valid for MLS, and its sender has no right to make it."""


class Order:
    """Takes messages into groups. ``news``: to which is added what people should know."""

    def __init__(
        self,
        user_id: UUID,
        groups: Groups,
        people: People,
        texts: Texts,
        agenda: Agenda,
        news: list[News],
        now: Callable[[], int],
    ) -> None:
        self._user_id, self._now, self._news = user_id, now, news
        self._groups, self._people, self._texts, self._agenda = groups, people, texts, agenda

    def read(self, held: Held, messages: Sequence[FetchedMessage]) -> list[Readable]:
        """Take a page; return what of it is for people. Within a transaction, and the group is not saved yet."""
        known = self._texts.read(held)
        found = []
        for message in messages:
            number = message.sequence_num
            if number in known:
                found.append(Readable(message, known[number]))
                continue
            if held.up_to and number > held.up_to + 1:
                self.misses(held, is_own=self._texts.own(held, message.mls_message) is not None)
            is_own, readable = self._take_own(held, message)
            if not is_own:
                readable = self._take(held, message)
            if readable:
                self._texts.keep_read(held, number, readable.text)
                found.append(readable)
            held.up_to = max(held.up_to, number)
        return found

    def misses(self, held: Held, *, is_own: bool = False) -> None:
        """Note that messages are gone that were not read here. Within a transaction.

        One of them may have been a commit. At the start, or where the first own text (``is_own``) comes back after
        them, they may also have been sent from here, and these keys are an old copy.
        """
        agenda = self._agenda.of(held.group_id)
        agenda.misses(held.group.epoch if held.group else -1)
        if held.stage is not Stage.IN:
            return
        if not agenda.is_caught_up or (is_own and not agenda.has_sent):
            held.is_doubtful = True
        agenda.doubt_info(is_own=held.is_doubtful)
        self._agenda.want(held.group_id, 0 if held.is_doubtful else SOON)

    def _take_own(self, held: Held, message: FetchedMessage) -> tuple[bool, Readable | None]:
        """Tell whether a message is a text that the user has sent, and return it, unless it was sent before."""
        if message.sender_id != self._user_id or not (own := self._texts.own(held, message.mls_message)):
            return False, None
        if not own.is_kept:  # or it comes once more to a history that was in memory only
            self._put_own(held, own, message)
        return True, Readable(message, own.text) if own.original in (0, message.sequence_num) else None

    def _put_own(self, held: Held, own: OwnText, message: FetchedMessage) -> None:
        """Erase a text that is here as a message now, or keep it as long as others may not have read it."""
        what = own, message.sequence_num, message.self_destruct_seconds
        self._agenda.of(held.group_id).has_sent = True
        self._texts.drop_other_tries(held, own)
        if not own.text:
            self._texts.drop_own(own.text_key)
        elif self._is_too_late(held, own) or held.is_doubtful:
            self._texts.keep_to_send_again(*what)
        elif not self.is_sure(held) or self._now() - held.in_since < UNSURE_SECONDS:
            self._texts.keep_until_sure(*what)
        else:
            self._texts.drop_own(own.text_key)
        if own.original:
            self._texts.note_repeated(held, own.original, message.sequence_num, is_own=True)
            self._texts.has_come_again(held, own)
        if own.is_unwanted:
            self._texts.note_unwanted(held, message.sequence_num)

    def is_sure(self, held: Held) -> bool:
        """Tell whether nothing says that the others may have other keys."""
        return not held.is_unsure and self._agenda.of(held.group_id).is_settled

    def _is_too_late(self, held: Held, own: OwnText) -> bool:
        """Tell whether a text came after its keys had passed: for everybody, or for some who have come in since."""
        if own.epoch == NO_EPOCH:
            return True
        if held.group is None or held.stage is not Stage.IN:
            return False
        return own.epoch < held.entered_epoch or held.group.epoch - own.epoch > MAX_PAST

    def _take(self, held: Held, message: FetchedMessage) -> Readable | None:
        if held.stage is not Stage.IN or held.group is None:
            self._pass_by(held, message)
            return None
        before = held.group.copy()
        try:
            received = held.group.receive(message.mls_message, self._now())
            self._check_sender(before, received, message.sender_id)
            self._check_rights(held, before, received)
            text = received.data.decode() if isinstance(received, ApplicationMessage) else None
        except UnicodeDecodeError:
            return Readable(message, None)  # it is a member's, but no text: the key is used up
        except NotFromHereError:
            self.give_up_old(held)
            self._pass_by(held, message)  # by it the group has gone on: a group info from before leads to nobody
            return None
        except MlsError as error:
            held.group = before
            return self._not_taken(held, before, message, error)
        if isinstance(received, ApplicationMessage):
            self._agenda.of(held.group_id).reads_others(before.epoch, received.epoch)
            self._hears(held, user_of(received.sender))
            original = _original(received.authenticated_data, message.sequence_num)
            if self._texts.has_heard(held, original, message.sender_id):
                # An admin may take both back.
                self._texts.note_repeated(held, original, message.sequence_num, is_own=False)
                return None
            self._texts.hear(held, original or message.sequence_num, message.sender_id)
            return Readable(message, text)
        self._taken(held, before, received, message)
        return None

    def _check_sender(self, before: Group, received: Received, sender_id: UUID) -> None:
        """Check that a message is from the user whom the server names (RFC 9420 section 5.3.1)."""
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
            raise InvalidError("it is signed by another member than the one whom the server names")

    def _check_rights(self, held: Held, before: Group, received: Received) -> None:
        """Check that who changes the members may do so, by the server's list as it is now.

        Admins may. Every member may remove those who are not on the list, its own leaf, and add those who are on it:
        the list may be newer than the change. A proposal is judged when it comes, by its own sender.
        """
        added, removed, by = _changes(before, received)
        agenda = self._agenda.of(held.group_id)
        if by is None or agenda.listed is None or by in agenda.admins:
            return
        if any(user_id in agenda.listed and user_id != by for user_id in removed):
            raise NoRightError("it removes a member, and only an admin may do that")
        if not agenda.listed.issuperset(added):
            raise NoRightError("it adds somebody who is no member, and only an admin may do that")

    def _taken(self, held: Held, before: Group, received: Received, message: FetchedMessage) -> None:
        """Go on from a change of the group."""
        if isinstance(received, ProposalArrived):
            self._agenda.want(held.group_id)
            return
        if not isinstance(received, CommitApplied) or received.effect is None:
            return
        agenda, effect = self._agenda.of(held.group_id), received.effect
        held.is_doubtful = False  # what was sent in the epoch that is over does not matter any more
        self._tell_removed(held, effect)
        if effect.removed_self or held.group is None or not held.group.is_member:
            self._groups.note_commit(held, held.up_to + 1, before.epoch, b"")
            self._removed(held, effect.committer, message)
            return
        for member in (*effect.added, *effect.updated, effect.committer):
            self.meet(held.group_id, member)
        if received.own:
            held.renewed_at = self._now()
        stay = {user_of(each) for each in before.members().values()} - {user_of(each) for each in effect.removed}
        came_by_itself = user_of(effect.committer) not in stay
        number = held.up_to + 1
        self._groups.note_commit(held, number, before.epoch, held.group.confirmation_tag)
        self._groups.note_removed(held, map(user_of, effect.removed) if not came_by_itself else ())
        for member in (*effect.added, *((effect.committer,) if came_by_itself else ())):
            self._comes(held, user_of(member), number)
        by_others = not received.own and not came_by_itself
        if by_others:
            self._hears(held, user_of(effect.committer))
        if came_by_itself or effect.added:
            held.entered_epoch = held.group.epoch
        if came_by_itself or agenda.uploaded_at_epoch == before.epoch:
            # Existing clients upload the group info of an external commit after it, and that may be lost.
            agenda.check_info(INFO_FOLLOWS if came_by_itself else SOON)
        agenda.changed(held.group.epoch, by_others=by_others)
        self._agenda.want(held.group_id)

    def _tell_removed(self, held: Held, effect: Effect) -> None:
        """Tell who has removed whom, unless somebody has replaced an own leaf."""
        by = user_of(effect.committer)
        for user_id in (user_of(each) for each in effect.removed):
            if user_id != by:
                self._news.append(EncryptionNotice(held.group_id, "removed", REMOVED, by, user_id))

    def _comes(self, held: Held, user_id: UUID, number: int) -> None:
        """Note that somebody has come in. Who is new gets nothing that was said before, nor by its being sent again."""
        if self._groups.note_comer(held, user_id, number):
            self._texts.drop_said_before(held, number)
        self._confirms_no_more(held, user_id)

    def _confirms_no_more(self, held: Held, user_id: UUID) -> None:
        """What a member has shown before coming in anew proves nothing any more."""
        if held.confirmed_by == user_id.bytes:
            held.confirmed_by = b""

    def _hears(self, held: Held, user_id: UUID) -> None:
        """Note that a member has the same keys: who was there before shows that they are those of the others."""
        if self.is_senior(held, user_id):
            held.confirmed_by = user_id.bytes
            self._agenda.of(held.group_id).agrees()

    def is_senior(self, held: Held, user_id: UUID) -> bool:
        """Tell whether somebody has not come in after this device."""
        return self._groups.came_at(held, user_id) <= held.entered_at

    def _note_comers(self, held: Held, message: FetchedMessage, header: Header) -> None:
        """Note who comes in by a commit that was not taken: into another branch, if it is anything.

        It was not checked, so no text goes by it: a client that enters that branch sees who is there (``enter``). Its
        sender is the one whom the server has taken it from; whom it adds may be anybody, who comes in long after.
        """
        if header.is_external and message.sender_id != self._user_id:
            self._groups.note_comer(held, message.sender_id, message.sequence_num, is_claimed=True)
            self._confirms_no_more(held, message.sender_id)

    def _removed(self, held: Held, committer: Member, message: FetchedMessage) -> None:
        """Go on without keys: to ask in again, unless another device of the account is in now. Both would for ever.

        It is no other one where the commit is a request of this client's that it gave up, as for a welcome.
        """
        if user_of(committer) == self._user_id:
            header = read_header(message.mls_message)
            if header is None or not self._groups.has_asked(held, header.tag):
                self.replaced(held)
                return
        self.give_up(held)
        self._agenda.want(held.group_id)

    def give_up(self, held: Held, stage: Stage = Stage.OUT) -> None:
        """Give the state of a group up, whose texts others may not have read. Within a transaction."""
        held.leave(stage)
        self._texts.give_up_keys(held)

    def replaced(self, held: Held) -> None:
        """Another device of the account has taken this one's place. Within a transaction."""
        self.give_up(held, Stage.REPLACED)
        self._news.append(EncryptionNotice(held.group_id, "replaced", REPLACED))

    def give_up_old(self, held: Held) -> None:
        """Give up a state that others have gone on from: by it, keys of messages would be used twice.

        Within a transaction.
        """
        self.give_up(held)
        self._news.append(EncryptionNotice(held.group_id, "restored", RESTORED))
        self._agenda.want(held.group_id)

    def meet(self, group_id: UUID, member: Member) -> None:
        """Remember a member's key; say so if it is another one than before."""
        if changed := self._people.meet(member):
            self._news.append(
                KeyChanged(group_id, changed.user_id, changed.former, changed.fingerprint, changed.was_verified)
            )

    # What is not taken

    def _not_taken(self, held: Held, group: Group, message: FetchedMessage, error: MlsError) -> Readable | None:
        header = read_header(message.mls_message)
        unreadable = Readable(message, None)
        if header is None:
            return self._refuse(held, message, "it is not encrypted, or not a message at all")
        agenda = self._agenda.of(held.group_id)
        self._note_comers(held, message, header)
        if header.is_commit and message.sender_id != self._user_id:
            agenda.suspects()
        if isinstance(error, StaleError):
            return self._passed(held, group, message, header)
        if isinstance(error, ReplayedError):
            return None if message.sequence_num <= held.up_to else self._refuse(held, message, str(error))
        if isinstance(error, (NoRightError, UnwantedError)):  # nothing is wrong with this client's keys
            agenda.without_right.add(message.sender_id)
            self._agenda.want(held.group_id)
            return self._refuse(held, message, str(error))
        if isinstance(error, OwnMessageError):
            return unreadable if header.is_application else None
        is_foreign = isinstance(error, ForgedError) or header.is_application
        agenda.fails_to_read(group.epoch, is_foreign=is_foreign)
        self._agenda.want(held.group_id)
        if message.sender_id == self._user_id:
            return unreadable if header.is_application else None
        if isinstance(error, ForgedError) and group.find(message.sender_id.bytes) is None:
            return None  # no forgery: who has no keys here has others, gives way, and sends it again
        return self._refuse(held, message, str(error))

    def _passed(self, held: Held, group: Group, message: FetchedMessage, header: Header) -> Readable | None:
        """Go on from a message of an epoch that is over, or that the group has not reached."""
        agenda = self._agenda.of(held.group_id)
        if header.epoch > group.epoch:
            agenda.doubt_info()
            agenda.ahead = agenda.ahead or not agenda.knows_all
            if agenda.has_read_all and not header.is_application:
                self._agenda.want(held.group_id)
                return self._refuse(held, message, "it is for an epoch that the group has not reached")
            if header.is_application:
                self._agenda.want(held.group_id)
                return Readable(message, None)
        elif not header.is_application:
            agenda.doubt_info(is_own=message.sender_id == self._user_id)
        elif header.epoch >= held.first_epoch:
            return Readable(message, None)
        elif held.is_unsure:
            agenda.doubt_info()  # it may be late, or the others are in another epoch
        self._agenda.want(held.group_id)
        return None

    def _refuse(self, held: Held, message: FetchedMessage, why: str) -> Readable | None:
        """Say that something was refused; it is for nobody."""
        sentence = f"Something that seems to come from this member was refused: {why}."
        self._news.append(EncryptionNotice(held.group_id, "refused", sentence, message.sender_id))
        return None

    # Without keys

    def _pass_by(self, held: Held, message: FetchedMessage) -> None:
        """Look at a message without the keys: only which commits there are, and how much cannot be read."""
        header = read_header(message.mls_message)
        if header is None or not header.is_commit:
            held.missed += message.sender_id != self._user_id and (header is None or header.is_application)
            return
        self._note_comers(held, message, header)
        self._groups.note_commit(held, message.sequence_num, header.epoch, header.tag)
        if held.stage is Stage.AWAITING:
            self.decide(held)

    def pass_over(self, held: Held, messages: Sequence[FetchedMessage]) -> None:
        """Give the keys up, and look at messages without them. Within a transaction."""
        self.give_up(held)
        for message in messages:
            self._pass_by(held, message)
            held.up_to = max(held.up_to, message.sequence_num)

    def decide(self, held: Held) -> None:
        """Enter the group if the commit that is awaited has come, and is the first of its epoch. Within a transaction.

        If another one has come first, it is void, and the user has to ask in again.
        """
        first = self._groups.first_commit(held, held.awaited.epoch)
        if first is None or held.group is None:
            return
        # A commit that lost against another one has left its group info: who comes in by that would be alone.
        base = held.base_tag
        known = self._groups.commit_into(held, held.awaited.epoch) if base else None
        number, tag = first
        if tag == held.awaited.tag and tag and known in (None, base):
            self.enter(held, number)
        else:
            self.give_up(held)
        self._agenda.want(held.group_id)

    def enter(self, held: Held, number: int = 0) -> None:
        """The user has the keys from here on.

        ``number``: of the commit which leads there; 0: the user has begun the group, and nobody was there before.
        """
        assert held.group is not None  # noqa: S101 - only then there are keys
        held.entered_at, held.confirmed_by = number, b"" if number else self._user_id.bytes
        held.in_since = self._now() if number else 0
        self._groups.forget_commits(held)
        self._groups.note_commit(held, number, held.group.epoch - 1, held.group.confirmation_tag)
        held.stage, held.awaited, held.first_epoch = Stage.IN, Awaited(0, b""), held.group.epoch
        held.entered_epoch = held.first_epoch
        members = held.group.members().values()
        for member in members:
            self.meet(held.group_id, member)
        self._texts.drop_said_before(held, self._groups.note_there(held, map(user_of, members), number))
        if held.missed:
            self._news.append(_came(held))
        held.missed, held.had_keys = 0, True
        agenda = self._agenda.of(held.group_id)
        agenda.entered(held.group.epoch, is_new=number > 0)
        agenda.doubt_info(is_own=True)
        self._agenda.want(held.group_id)


def _changes(before: Group, received: Received) -> tuple[list[UUID], list[UUID], UUID | None]:
    """Return whom a change of the group adds and removes, and who needs the right to that; None: it is no change."""
    if isinstance(received, CommitApplied) and received.effect and not received.own:
        effect = received.effect
        added = [user_of(each) for each in effect.added if each not in effect.proposed]
        removed = [user_of(each) for each in effect.removed if each not in effect.proposed]
        return added, removed, user_of(effect.committer)
    if isinstance(received, ProposalArrived) and received.sender.sender_type == SenderType.MEMBER:
        members, proposal = before.members(), received.proposal
        added = [UUID(bytes=proposal.key_package.leaf_node.credential.identity)] if isinstance(proposal, Add) else []
        gone = members.get(proposal.removed) if isinstance(proposal, Remove) else None
        return added, [user_of(gone)] if gone else [], user_of(members[received.sender.index])
    return [], [], None


_AGAIN = b"again "


def in_the_clear(original: int) -> bytes:
    """Return what a message that is sent again says in the clear: under which number it came first."""
    return _AGAIN + str(original).encode()


def _original(authenticated_data: bytes, number: int) -> int:
    """Return under which number, less than its own, a message came first; 0 if it does not say so."""
    digits = authenticated_data.removeprefix(_AGAIN)
    if digits == authenticated_data or not digits.isdigit() or len(digits) > LONGEST_NUMBER:
        return 0
    return original if (original := int(digits)) < number else 0


def _came(held: Held) -> EncryptionNotice:
    count = f"{held.missed:,} message" + ("s" if held.missed != 1 else "")
    if held.had_keys:
        sentence = f"You are back with new keys: {count} of the time without them cannot be read."
        return EncryptionNotice(held.group_id, "returned", sentence)
    return EncryptionNotice(held.group_id, "joined", f"You came in here: {count} from before cannot be read.")
