"""What members' clients do by themselves, so that a group goes on: coming in, mending the tree, renewing keys.

Nothing here remembers what was begun: each look compares what is with what should be. So whatever was lost on the way,
and wherever a process died, the next look goes on from there.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from conclave.client.codec import Beginning, Change, Joining
from conclave.client.encryption.agenda import ROUND_SECONDS, Agenda, GroupAgenda
from conclave.client.encryption.groups import Held, Stage
from conclave.client.encryption.headers import InfoHeader, read_info
from conclave.client.encryption.people import user_of
from conclave.client.errors import (
    ClientError,
    RefusedError,
    ResourceError,
    SessionOverError,
)
from conclave.client.events import EncryptionChanged, EncryptionNotice, News
from conclave.client.mls import Group as MlsGroup
from conclave.wire.results import Group

if TYPE_CHECKING:
    from conclave.client.api import Client

RENEWED_SECONDS = 6 * 86_400
"""The own leaf is renewed after six days, or with any commit of the user's before that."""

TURN_SECONDS = 2.0
"""What several members could do the first does at once, the next after two seconds if it is still to be done."""

LONGEST_TURN = 20.0

TRIES_BY_STALE_INFO = 3
"""So often somebody who comes in waits for a newer group info; then a commit that says otherwise may be rubbish."""

UNSURE_SECONDS = 3.0
"""Who has come in, and sees that the server has been told of another epoch, gives way after three seconds of that."""

CHECKED_AGAIN = 5.0
"""What was put right at the server is looked at again after five seconds: others may have done so the other way."""

MANY = 8
"""Who has read all, but cannot read what the others say: after eight messages in an epoch it is this client's fault."""

REFUSED_BELOW = 500
"""With a status below 500 nothing was done."""

LOST = "This device had lost its way among the keys of this group, and comes in again."

FALSE_INFO = (
    "What the server had for those who come in was false: it told of changes that nobody has made. It was replaced."
)

STRANGER_TOLD_AFTER = 5.0
"""Who has just left has keys for a moment: that is told only if it stays so for five seconds."""


class Keys(Protocol):
    """What is asked of the codec."""

    def held(self, group_id: UUID) -> Held | None:
        """Return a group, to be looked at."""
        ...

    def begin(self, group_id: UUID) -> Beginning:
        """Begin a new group."""
        ...

    def join(self, group_id: UUID, group_info: bytes) -> Joining:
        """Make what brings the user in from outside."""
        ...

    def commit(self, group_id: UUID, remove: Sequence[int] = ()) -> Change:
        """Make a commit."""
        ...

    def leave(self, group_id: UUID, why: str = "") -> None:
        """Give a state up; ``why``: what is told of it."""
        ...

    def gives_way(self, group_id: UUID, group_info: bytes) -> bool:
        """Tell whether another device of the account is in by now, so that this one stays out."""
        ...

    def is_outdated(self, held: Held, info: InfoHeader) -> bool:
        """Tell whether a group info is too old, or of a commit that lost against another one."""
        ...

    def forget_commits(self, held: Held) -> None:
        """Forget why it seems to be."""
        ...


class Keeper:
    """Looks at groups when the agenda says so."""

    awaits = 5.0
    """A commit that was sent is there after five seconds, or was not stored."""

    def __init__(self, keys: Keys, agenda: Agenda, user_id: UUID, news: list[News], now: Callable[[], int]) -> None:
        self._keys, self._agenda, self._user_id, self._news, self._now = keys, agenda, user_id, news, now

    async def settle(self, client: "Client", groups: Sequence[Group]) -> set[UUID]:
        """Look at the groups that are due; return those that are to be fetched then. Raises SessionOverError."""
        due, to_fetch = set(self._agenda.due()), set[UUID]()
        for gone in due - {each.group_id for each in groups}:
            self._pass_over(gone)
        for group in groups:
            if group.group_id not in due:
                continue
            agenda = self._agenda.of(group.group_id)
            agenda.at = None
            self._agenda.want(group.group_id, ROUND_SECONDS)
            try:
                fetched = await self._look(client, group, agenda)
            except SessionOverError:
                raise
            except ClientError:
                self._agenda.want(group.group_id, agenda.wait())
                fetched = True  # the answer may be lost, and the commit there
            if fetched:
                to_fetch.add(group.group_id)
        return to_fetch

    def _pass_over(self, group_id: UUID) -> None:
        """The user is not in a group; or was not when the server was asked, and has come in since."""
        if self._keys.held(group_id) is None:
            self._agenda.forget(group_id)
            return
        self._agenda.of(group_id).at = None
        self._agenda.want(group_id, self.awaits)

    async def _look(self, client: "Client", group: Group, agenda: GroupAgenda) -> bool:
        """Look at a group. Tell whether it is to be fetched."""
        listed = frozenset(each.user_id for each in group.members)
        if listed != agenda.listed:  # who cannot read yet, and who can without being a member, is shown by it
            agenda.listed = listed
            self._news.append(EncryptionChanged(group.group_id))
        held = self._keys.held(group.group_id)
        if held and held.stage is Stage.REPLACED:
            return False
        if held and held.stage is Stage.AWAITING:
            if (rest := agenda.asked_at + self.awaits - self._agenda.clock()) > 0:
                self._agenda.want(group.group_id, rest)
                return True
            # It was fetched since the commit was sent, or the welcome came, and the commit was not there.
            self._keys.leave(group.group_id)
        if held is None or held.stage is not Stage.IN or held.group is None:
            return await self._come_in(client, group, agenda)
        if not agenda.is_caught_up:
            self._agenda.want(group.group_id)
            return True
        if group.mls_group_id != held.group.group_id.hex():
            return await self._name(client, group, held.group)
        if await self._check_info(client, held, held.group, agenda):
            return True
        return await self._mend(client, group, held, agenda)

    # Coming in

    async def _come_in(self, client: "Client", group: Group, agenda: GroupAgenda) -> bool:
        """Ask in by an external commit, or begin the group if it never began. Tell whether it is to be fetched."""
        group_id = group.group_id
        info = await _info(client, group_id)
        header = read_info(info)
        if not group.mls_group_id and header is None:
            if self._is_admin(group):
                await self._begin(client, group_id)
            else:
                self._agenda.want(group_id, agenda.wait())
            return False
        held = self._keys.held(group_id)
        if header is None or (group.mls_group_id and header.mls_group_id.hex() != group.mls_group_id):
            self._agenda.want(group_id, agenda.wait())
            return False
        if held and self._keys.is_outdated(held, header):
            if agenda.attempts < TRIES_BY_STALE_INFO:
                self._agenda.want(group_id, agenda.wait())
                return True
            self._keys.forget_commits(held)
        if self._keys.gives_way(group_id, info):
            return False
        joining = self._keys.join(group_id, info)
        agenda.attempts += 1
        self._agenda.want(group_id, max(self.awaits, agenda.wait()))
        try:
            await client.external_join(group_id, joining.commit, joining.mls_group_id)
        except RefusedError as error:
            if error.status < REFUSED_BELOW:
                self._keys.leave(group_id)
            raise
        return True

    async def _begin(self, client: "Client", group_id: UUID) -> None:
        """Begin a group that has members, but no keys: whoever began it died, or did not encrypt."""
        beginning = self._keys.begin(group_id)
        await client.commit(group_id, mls_group_id=beginning.mls_group_id)  # of two who begin the first is the one
        self._agenda.want(group_id, 0)

    async def _name(self, client: "Client", group: Group, ours: MlsGroup) -> bool:
        """The server does not know the group by its id: say it, or give way to another one that began first."""
        if group.mls_group_id:
            self._keys.leave(group.group_id)
        else:
            await client.commit(group.group_id, group_info=ours.group_info(), mls_group_id=ours.group_id.hex())
        self._agenda.want(group.group_id, 0)
        return False

    # Being in

    async def _check_info(self, client: "Client", held: Held, ours: MlsGroup, agenda: GroupAgenda) -> bool:
        """Compare the group info of the server when it is time to. Tell whether to stop here."""
        if agenda.info_at is not None and agenda.info_at <= self._agenda.clock():
            agenda.info_at = None
            if await self._compare_info(client, held, ours, agenda):
                return True
        if held.is_unsure and agenda.info_at is None:
            agenda.check_info(agenda.unsure_wait())
        if agenda.info_at is not None:
            self._agenda.want(held.group_id, agenda.info_at - self._agenda.clock())
        return False

    async def _compare_info(self, client: "Client", held: Held, ours: MlsGroup, agenda: GroupAgenda) -> bool:
        """Compare the group info of the server with the state, and mend what is wrong. Tell whether to stop here."""
        group_id = held.group_id
        header = read_info(await _info(client, group_id))
        if header == InfoHeader(ours.group_id, ours.epoch, ours.confirmation_tag):
            agenda.ahead, agenda.claimed = False, None
            if agenda.uploaded_at_epoch != ours.epoch:  # or it says only what this client has said
                agenda.bad, agenda.bad_commits = 0, 0
            return False
        if header and header.mls_group_id == ours.group_id:
            if _may_be_right(header, held, ours, agenda):
                self._give_way(group_id, header, agenda, UNSURE_SECONDS if held.is_unsure else 0.0)
                return True
            if header.epoch > ours.epoch and not agenda.bad:  # or what was refused has told it already
                self._news.append(EncryptionNotice(group_id, "refused", FALSE_INFO))
        agenda.ahead, agenda.claimed = False, None
        await client.commit(group_id, group_info=ours.group_info())
        agenda.uploaded_at_epoch = ours.epoch
        agenda.check_info(CHECKED_AGAIN)
        return False

    def _give_way(self, group_id: UUID, header: InfoHeader, agenda: GroupAgenda, patience: float) -> None:
        """The others may be in another epoch: fetch what leads there; if it does not come, come in again."""
        now = self._agenda.clock()
        if header != agenda.claimed:
            agenda.claimed, agenda.claimed_at = header, now
        elif now - agenda.claimed_at >= patience:
            self._keys.leave(group_id, LOST)
        agenda.doubt_info()
        self._agenda.want(group_id)

    async def _mend(self, client: "Client", group: Group, held: Held, agenda: GroupAgenda) -> bool:
        """Commit what has to be: without strangers, with proposals that wait, with new own keys."""
        group_id, ours = group.group_id, held.group
        if ours is None:
            return False
        listed = agenda.listed or frozenset()
        strangers = [each for each in ours.members().values() if user_of(each) not in listed]
        self._tell_strangers(group_id, agenda, [user_of(each) for each in strangers])
        removable = [each.leaf_index for each in strangers] if self._is_admin(group) else []
        is_needed = bool(removable) or ours.has_proposals
        if not is_needed:
            agenda.needed_since = None
        elif not self._has_turn(group, ours, agenda):
            return False
        is_old = self._now() - held.renewed_at >= RENEWED_SECONDS
        if not is_needed and not is_old:
            return False
        change = self._keys.commit(group_id, removable)
        self._agenda.want(group_id, self.awaits)
        await client.commit(group_id, commit_message=change.commit, group_info=change.group_info)
        return True

    def _has_turn(self, group: Group, ours: MlsGroup, agenda: GroupAgenda) -> bool:
        """Tell whether it is this client's turn to do what several could."""
        now = self._agenda.clock()
        agenda.needed_since = now if agenda.needed_since is None else agenda.needed_since
        in_tree = {user_of(each) for each in ours.members().values()}
        order = sorted((each.role != "admin", each.user_id) for each in group.members if each.user_id in in_tree)
        rank = [user_id for _, user_id in order].index(self._user_id)
        wait = agenda.needed_since + min(rank * TURN_SECONDS, LONGEST_TURN) - now
        if wait > 0:
            self._agenda.want(group.group_id, wait)
        return wait <= 0

    def _tell_strangers(self, group_id: UUID, agenda: GroupAgenda, strangers: Sequence[UUID]) -> None:
        """Tell who has keys without being a member, if it stays so; and that it is over."""
        now = self._agenda.clock()
        if not strangers:
            if agenda.is_stranger_told:
                sentence = "Only members have the keys of this group again."
                self._news.append(EncryptionNotice(group_id, "mended", sentence))
            agenda.stranger_since, agenda.is_stranger_told = None, False
            return
        agenda.stranger_since = now if agenda.stranger_since is None else agenda.stranger_since
        if agenda.is_stranger_told:
            return
        if now - agenda.stranger_since < STRANGER_TOLD_AFTER:
            self._agenda.want(group_id, STRANGER_TOLD_AFTER)
            return
        agenda.is_stranger_told = True
        sentence = "This person can read what is written here, and is no member: an admin's client has to change that."
        self._news.extend(EncryptionNotice(group_id, "stranger", sentence, each) for each in strangers)

    def _is_admin(self, group: Group) -> bool:
        return any(each.user_id == self._user_id and each.role == "admin" for each in group.members)


def _may_be_right(header: InfoHeader, held: Held, ours: MlsGroup, agenda: GroupAgenda) -> bool:
    """Tell whether a group info that is not of this client's epoch may be of the one that the others are in.

    Who has read all since the others went along with a commit stays: it is who made the group info that is wrong. Who
    has just come in may have done so by a false one, and cannot read the others then; nor can who has followed a commit
    that the others refused, by other rules than those here.
    """
    if held.is_unsure:
        return header.tag != held.base_tag
    is_new = 0 < held.first_epoch == ours.epoch
    cannot_read = not agenda.good and agenda.bad >= (1 if is_new or not agenda.has_read_all else MANY)
    if header.epoch > ours.epoch:
        return header != agenda.claimed or not agenda.knows_all or cannot_read
    return header.epoch == ours.epoch and cannot_read


async def _info(client: "Client", group_id: UUID) -> bytes:
    """Return the group info that the server has; b"" if it has none."""
    try:
        return await client.group_info(group_id)
    except ResourceError:
        return b""
