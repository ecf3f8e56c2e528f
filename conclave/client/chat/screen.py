"""The screen of the chat: groups on the left, the open one on the right, and a line to type into."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from textual import work
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.css.query import NoMatches
from textual.message import Message as UiMessage
from textual.screen import Screen
from textual.widgets import Static

from conclave.client.chat import commands, formatting, help_text, judging
from conclave.client.chat.calling import Caller, Calls
from conclave.client.chat.command_context import CommandError, Told
from conclave.client.chat.composer import Composer
from conclave.client.chat.conversation import Conversation
from conclave.client.chat.dialogs import Ask, NewPassword, Pick, Tell
from conclave.client.chat.heading import heading
from conclave.client.chat.key_line import KeyLine
from conclave.client.chat.passing import Sayings
from conclave.client.chat.rooms import Room
from conclave.client.chat.rows import Look
from conclave.client.chat.sidebar import Sidebar
from conclave.client.chat.timeline import Timeline
from conclave.client.chat.top_line import top_line
from conclave.client.chat.type_ahead import Ahead
from conclave.client.errors import ClientError, NoAnswerError, SessionOverError, describe_error
from conclave.client.events import Message

LOOKED_EVERY = 0.2
"""Five times a second it is looked whether a second has passed: what is gone vanishes within 0.2 seconds."""

GATHERED = 0.03
"""Changes that come within 30 ms are shown together."""

LOW = 20
"""On a screen of less than 20 rows the heading tells only what has to be known."""

TINY, LEAST = 8, 5
"""On less than 8 rows there is no heading, on less than 5 nothing but messages and the field."""

LOGGED_OUT_WITHIN = 3.0
"""For 3 seconds it is waited that the server ends the session."""

LEAVES = "Ctrl+C again leaves, as Ctrl+Q does"
"""As long as that can be read, it does."""

PAUSE = 0.5
"""A dialog rises once nothing was typed for half a second."""

CHOOSING = ("pageup", "pagedown", "ctrl+g", "ctrl+end", "escape")
"""Keys by which the user shows to be in the open group, also if it has opened by itself."""

HELD_BACK = "A message here destroys itself: its time begins once you choose the group, as Ctrl+G does"

SHOWN = ("Sidebar", "Timeline", "Composer", "#room", "#bar", "#head", "#welcome", "#said", "#hint")
"""What is shown anew as time passes and things change: as selectors."""


class ChatScreen(Screen[None]):
    """Shows a conversation, and does what is typed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "Help"),
        Binding("f2", "info", "Group"),
        Binding("ctrl+n", "prefill('/new ')", "New"),
        Binding("ctrl+up,alt+up", "step(-1)", "Groups", key_display="Alt+↑↓"),
        Binding("ctrl+down,alt+down", "step(1)", show=False),
        Binding("ctrl+g", "step_unread", "Unread", key_display="^g"),
        Binding("escape", "type", "Type", show=False, priority=True),
    ]

    class Ended(UiMessage):
        """The conversation cannot go on."""

        def __init__(self, why: Exception) -> None:
            self.why = why
            super().__init__()

    class LoggedOut(UiMessage):
        """The user has logged out. ``has_ended``: the server has ended the session too."""

        def __init__(self, *, has_ended: bool) -> None:
            self.has_ended = has_ended
            super().__init__()

    conversation: Conversation
    """What goes on with the server. It is set before the screen is shown."""

    def __init__(self, *, is_plain: bool, calls: Calls = Calls.OFF) -> None:
        """``is_plain``: for screen readers. ``calls``: how the user is called."""
        super().__init__()
        self._is_plain = is_plain
        self._caller = Caller(calls, self._write)
        self._is_judging = False
        self._second = 0
        self._is_leaving = False
        self._opened: UUID | None = None
        self._typed_at = 0.0
        self._is_chosen = False
        self._held_back: list[int] = []  # what was on the screen, and would begin its timer, before a group was chosen
        self._has_lost = False
        self._is_stale: set[str] = set()
        self._wrong = ""
        self._wrong_line: str | None = None
        self._ahead = Ahead()
        self._opening: asyncio.Task[Any] | None = None  # does the command that ``_ahead`` keeps lines for
        self._sayings = Sayings()

    @property
    def room(self) -> Room | None:
        """The open group."""
        open_room = self.conversation.open_room
        return self.conversation.rooms.all.get(open_room) if open_room else None

    def compose(self) -> ComposeResult:
        """Put it together."""
        yield Static(id="bar")
        with Horizontal():
            yield Sidebar(id="sidebar", compact=True)
            with Vertical(id="room"):
                yield Static(id="head")
                yield Timeline(id="timeline")
                yield Static(id="welcome")
                yield Static(id="said")
                yield Static(id="hint")
                yield Composer(
                    id="composer",
                    placeholder="a message, or / for commands",
                    hands_over=self._take,
                    does=self._does,
                    names=self._names,
                )
        yield KeyLine(id="keys")

    def on_mount(self) -> None:
        """Begin to count."""
        self.set_interval(LOOKED_EVERY, self._tick)
        self.app.theme_changed_signal.subscribe(self, lambda _: self.rooms_changed())
        self.query_one(Composer).focus()
        self._show()
        self._show_said()

    # What the conversation tells.

    def rooms_changed(self) -> None:
        """Show groups, invites and the connection anew, with what else changes just now."""
        self._later("rooms")

    def room_changed(self, group_id: UUID) -> None:
        """Show what is in a group anew, if it is the open one."""
        if group_id == self.conversation.open_room:
            self._later("room")

    def say(self, text: str, *, is_bad: bool = False) -> None:
        """Say something in passing; in plain mode where it can be read again."""
        if self._is_plain and self.room:
            self.room.notice(formatting.harmless(text), self.conversation.now())
            self._later("room")
            return
        self._sayings.say(formatting.harmless(text), is_bad=is_bad)
        self._show_said()

    def _show_said(self) -> None:
        """Show what was said lately."""
        if self._is_taken_down():
            return
        said = self.query_one("#said", Static)
        shown = self._sayings.all[-1:] if self.size.height < LOW else self._sayings.all
        said.display = bool(shown) and self.size.height >= LEAST
        rows = (Content(each.text).stylize("$error" if each.is_bad else "$accent") for each in shown)
        said.update(Content("\n").join(rows))

    def _refuse(self, line: str, why: str) -> None:
        """Say by the field why a line was not taken, until it is changed.

        The line is there again and marked: what is typed now takes its place. If the next line was begun, that stays,
        and it is said until that is sent.
        """
        composer = self.query_one(Composer)
        self._wrong, self._wrong_line = formatting.harmless(why), None if composer.text else line
        if not composer.text:
            composer.give_back(line)
        self._show_hint()
        if self._is_plain and self.room:
            self.say(why, is_bad=True)

    def ended(self, why: Exception) -> None:
        """Leave it to the program: the conversation cannot go on. That a session is over is no news at a log-out."""
        if not (self._is_leaving and isinstance(why, SessionOverError)):
            self.app.post_message(self.Ended(why))

    def _later(self, what: str) -> None:
        if not self.is_running:
            return  # not shown yet, which shows everything, or not any more
        if not self._is_stale:
            self.set_timer(GATHERED, self._show)
        self._is_stale.add(what)

    # What is shown.

    def _show(self) -> None:
        self._is_stale.clear()
        if self._is_taken_down():
            return
        conversation, room = self.conversation, self.room
        if room is None and self._opened:
            self._lose()
        if room is None and not (self._has_lost or self._ahead.line) and (first := conversation.opens_by_itself()):
            self.go(first.group.group_id)
            self._is_chosen = False
            return
        self.query_one(Sidebar).show(conversation.rooms, conversation.open_room, conversation.now())
        self.query_one("#bar", Static).update(top_line(conversation, room, self.size.width, is_plain=self._is_plain))
        is_low = self.size.height < LOW
        head = heading(room, conversation.user_id, is_plain=self._is_plain, is_low=is_low) if room else Content("")
        self.query_one("#head", Static).update(head)
        self.query_one("#head").display = room is not None and self.size.height >= TINY
        timeline, welcome = self.query_one(Timeline), self.query_one("#welcome", Static)
        timeline.display, welcome.display = room is not None, room is None
        nothing = help_text.WELCOME if conversation.offline is None else help_text.CONNECTING
        welcome.update(Content(help_text.CHOOSE if conversation.rooms.all else nothing))
        items = list(room.items(conversation.now())) if room else []
        timeline.show(conversation.open_room, items, self._look(room))
        if room:
            room.is_at_end = timeline.is_at_end()
        self._show_hint()

    def _is_taken_down(self) -> bool:
        """Tell whether the chat ends: what is in a screen goes before the screen, whose timers may still fire."""
        try:
            for each in SHOWN:  # one by one, since Textual remembers the answer of query_one only
                self.query_one(each)
        except NoMatches:
            return True
        return False

    def _lose(self) -> None:
        """The open group is gone, and what was typed for it: nor is it sent to another one, so none is opened."""
        self._opened, self._has_lost = None, True
        composer = self.query_one(Composer)
        if not commands.is_command(composer.text):
            composer.text = ""

    def _look(self, room: Room | None) -> Look:
        rooms = self.conversation.rooms
        look = Look(0, rooms.called, rooms.user_id, self.conversation.now(), is_plain=self._is_plain)
        look = replace(look, is_online=self.conversation.offline is None)
        if room is None:
            return look
        username = self.conversation.client.session.username
        look = replace(look, means_user=partial(room.means, username))
        return replace(look, read_before=room.read_before, has_later=room.has_later, found=room.found)

    def _show_hint(self) -> None:
        """Show what was wrong with a line, or what a command could become while it is typed."""
        if self._is_taken_down():
            return
        text = self.query_one(Composer).text
        hint = self.query_one("#hint", Static)
        if self._wrong and self._wrong_line in (None, text):
            hint.display = self.size.height >= LEAST
            hint.update(Content(self._wrong).stylize("$error"))
            return
        self._wrong = ""
        if self._ahead.lines and not text:
            hint.display = self.size.height >= LEAST
            hint.update(Content(f"{formatting.count(len(self._ahead.lines), 'line')} to come after {self._ahead.line}"))
            return
        if names := self.query_one(Composer).names_to_come():
            hint.display = self.size.height >= LEAST
            hint.update(Content("  ".join(f"@{formatting.harmless(each)}" for each in names)))
            return
        if self.room and (quote := commands.quoted_by(text, self.conversation, self.room)):
            hint.display = self.size.height >= LEAST
            hint.update(Content(quote))
            return
        found = commands.matching(text) if text.startswith("/") and "\n" not in text else []
        hint.display = bool(found) and self.size.height >= LEAST
        if len(found) == 1:
            hint.update(Content.assemble((found[0].usage, "bold"), f"  {found[0].says}"))
        elif found:
            hint.update(Content("  ".join(f"/{each.name}" for each in found)))

    def _tick(self) -> None:
        """Count down with each second of the server's."""
        now = self.conversation.now()
        if now != self._second and not self._is_taken_down():
            if any(self._second < each.muted_until <= now for each in self.conversation.rooms.all.values()):
                self._later("rooms")
            self._second = now
            self.query_one(Timeline).tick(now)
            self._show_hint()  # it may quote what is gone by now
            self.save_unsent()
        if self.app.screen is self and self.app.app_focus and self._sayings.tick(LOOKED_EVERY):
            self._show_said()

    def save_unsent(self) -> None:
        """Have what is typed kept, for after a crash."""
        typed = self.query_one(Composer).text
        self.conversation.unsent.keep(self.room, "" if commands.is_command(typed) else typed)

    # What the user does.

    def on_text_area_changed(self) -> None:
        """Help with what is typed."""
        self._typed_at = time.monotonic()
        self._show_hint()

    def _take(self, text: str) -> None:
        """Do a command, or send a message."""
        self._wrong = ""
        if self._sayings.pass_on():
            self._show_said()
        if self._ahead.takes(text, self.room):
            self._show_hint()
        elif commands.opens(text) and not self._ahead.line:
            self._ahead.begin(text, self.room)
            self.run_worker(self._open(text, self.room))
        elif commands.is_command(text):
            self._begin(text)
        elif self.room is None:
            self._refuse(text, "No group is open: make one with /new NAME, or take an invite with /accept")
        else:
            text = text.removeprefix("/")
            self._choose()
            self.conversation.send_queue.send(self.room, text, self.room.self_destruct_seconds)
            self.go_to_end()

    def go_to_end(self) -> None:
        """Show the newest messages, with what was just typed."""
        if self.room:
            self.conversation.load_last(self.room)
        self._show()
        self.query_one(Timeline).go_to_end()

    def _names(self) -> list[str]:
        """Return the names of the others in the open group."""
        members = self.room.group.members if self.room else ()
        return [each.username for each in members if each.user_id != self.conversation.user_id]

    def _does(self, key: str) -> bool:
        """Do what a key means beside the field. Tell whether it means something."""
        timeline = self.query_one(Timeline)
        keys: dict[str, Callable[[], None]] = {
            "pageup": timeline.action_page_up,
            "pagedown": timeline.action_page_down,
            "ctrl+g": self.action_step_unread,
            "ctrl+end": self.go_to_end,
            "ctrl+c": self.interrupt,
            "escape": self._put_aside,
            **dict.fromkeys(("alt+up", "ctrl+up"), partial(self.action_step, -1)),
            **dict.fromkeys(("alt+down", "ctrl+down"), partial(self.action_step, 1)),
        }
        if key in keys:
            keys[key]()
        if key in CHOOSING:
            self._choose()
        return key in keys

    def interrupt(self) -> None:
        """Leave, if the user means it: by the second Ctrl+C in a row."""
        if self._sayings.has(LEAVES):
            self.run_worker(self.leave_chat())
            return
        self._sayings.say(LEAVES)
        self._show_said()

    def on_sidebar_chosen(self, event: Sidebar.Chosen) -> None:
        """Open a group, or answer an invite."""
        if event.group_id:
            self.go(event.group_id)
            self.query_one(Composer).focus()
        elif event.invite_id:
            self._answer(event.invite_id)

    def on_timeline_seen(self, event: Timeline.Seen) -> None:
        """What is on the screen was seen; but no timer begins in a group that has opened by itself."""
        numbers = event.numbers
        if self.room and not self._is_chosen:
            burning = {each.sequence_num for each in self.room.messages.values() if each.self_destruct_seconds}
            self._held_back += [each for each in numbers if each in burning]
            numbers = [each for each in numbers if each not in burning]
            if self._held_back:
                self.say(HELD_BACK)
        self.conversation.seen(event.group_id, numbers)

    def _choose(self) -> None:
        """The user wants the group that is open."""
        held_back, self._held_back = self._held_back, []
        self._is_chosen = True
        if self.room and held_back:
            self.conversation.seen(self.room.group.group_id, held_back)

    def on_timeline_begins(self) -> None:
        """Load what comes before, if there is something."""
        if self.room and self.room.has_earlier and self.conversation.load_earlier(self.room):
            self._later("room")

    def on_timeline_ends(self) -> None:
        """Load what comes after, if that is not loaded."""
        if self.room and self.room.has_later and self.conversation.load_later(self.room):
            self._later("room")

    def on_screen_resume(self) -> None:
        """A dialog is gone: the timeline is looked at again."""
        self.query_one(Timeline).look_around()

    def on_resize(self) -> None:
        """Fit into another size."""
        self.set_class(self.size.height < TINY, "tiny")
        self.set_class(self.size.height < LEAST, "least")
        self._later("room")
        self._show_said()

    def action_help(self) -> None:
        """Show keys and commands."""
        self.app.push_screen(Tell("Keys and commands", help_text.help_content()))

    def action_info(self) -> None:
        """Show what there is to know of the open group."""
        self._begin("/info")

    def action_prefill(self, text: str) -> None:
        """Begin a command for the user."""
        self.query_one(Composer).prefill(text)

    def action_type(self) -> None:
        """Go back to typing, before the next key is taken. The field itself has a use for Escape, in its turn."""
        composer = self.query_one(Composer)
        if composer.has_focus:
            raise SkipAction
        self.set_focus(composer)

    def _put_aside(self) -> None:
        """Count as read what is unread here, if nothing is being typed."""
        if self.room and not self.query_one(Composer).text:
            self.conversation.put_aside(self.room)

    def action_step(self, by: int) -> None:
        """Open the next group, or the one before."""
        rooms = self.conversation.rooms.ordered()
        if rooms:
            here = next((index for index, each in enumerate(rooms) if each is self.room), -1 if by > 0 else 0)
            self.go(rooms[(here + by) % len(rooms)].group.group_id)

    def action_step_unread(self) -> None:
        """Go to what is unread and out of sight in the open group, or open the next group with something unread."""
        if self.room and self.room.unread and not self.query_one(Timeline).is_shown(self.room.unread_from):
            self.query_one(Timeline).leave()
            self.go(self.room.group.group_id)
            return
        unread = [each for each in self.conversation.rooms.ordered() if each.unread and each is not self.room]
        if unread:
            self.go(unread[0].group.group_id)
        else:
            self.say("Nothing else is unread")

    def _begin(self, line: str) -> None:
        """Do a command for the group that is open now: at once, or in the background if it has to wait."""
        work = self._do(line, self.room)
        if not commands.is_at_once(line):
            self.run_worker(work)
            return
        try:
            work.send(None)
        except StopIteration:
            return
        raise RuntimeError(f"{line.partition(' ')[0]} does not do at once what it does")

    async def _open(self, line: str, room: Room | None) -> None:
        """Do a command that opens a group, and then what was typed after it: in that group, or not at all."""
        self._opening = asyncio.current_task()
        await self._do(line, room)
        lines, is_there = self._ahead.end()
        if is_there:
            for each in lines:
                self._take(each)
        elif lines:
            self._give_back(line, lines)
        self._later("room")

    def _give_back(self, line: str, lines: list[str]) -> None:
        """Say that nothing came after a command. Messages are in the field again; commands can be recalled."""
        composer = self.query_one(Composer)
        messages = [each for each in lines if not commands.is_command(each)]
        if messages:
            begun = composer.text if composer.text != line else ""
            composer.prefill("\n".join([*messages, *([begun] if begun else [])]))
            self._wrong_line = None
        self._wrong = f"{formatting.harmless(line)}: {self._wrong}. Nothing that came after it was done or sent"
        self._show_hint()

    async def _do(self, line: str, room: Room | None) -> None:
        """Do a command; what went wrong is said, and the line is there again to be corrected."""
        try:
            await commands.run(self, line, room)
            self._later("room")
        except SessionOverError as error:
            self.ended(error)
        except NoAnswerError as error:
            self._refuse(line, f"{error}. It may be done all the same: look before you try again")
        except (ClientError, CommandError, ValueError) as error:
            self._refuse(line, describe_error(error))

    def call(self, room: Room, message: Message) -> None:
        """Call the user, unless the group is before their eyes."""
        if not (room is self.room and self.app.app_focus and self.app.screen is self):
            self._caller.call(self.conversation.rooms.called(message.sender_id), room.name, message)

    def _write(self, told: str) -> None:
        """Write to the terminal itself."""
        driver = self.app._driver  # noqa: SLF001 - textual has no public way but for the bell; its version is bounded
        if driver is not None:
            driver.write(told)

    def held(self, group_id: UUID) -> None:
        """Ask about a key that has changed, before anything is sent; in the group that is open, and once at a time."""
        if self.room and self.room.group.group_id == group_id and not self._is_judging and self.is_running:
            self._is_judging = True
            self._judge(self.room)

    @work
    async def _judge(self, room: Room) -> None:
        try:
            await judging.judge_changed(self, room)
        except ClientError as error:
            self.say(describe_error(error), is_bad=True)
        finally:
            self._is_judging = False

    @work
    async def _answer(self, invite_id: UUID) -> None:
        invite = next((each for each in self.conversation.rooms.invites if each.invite_id == invite_id), None)
        if invite is None:
            return
        who, where = formatting.called(invite.inviter_username), formatting.called(invite.group_name)
        to = formatting.titled(invite.group_name, invite.group_alias)
        text = f"{who} invites you to {to}, since {formatting.date_and_time(invite.created_at)}."
        answer = await self.app.push_screen_wait(Ask(f"Join {where}?", text, ("Accept", "Decline", "Later")))
        if answer != "Later":
            self._begin(f"/{answer.lower()} {invite.group_name}")

    # What commands need.

    async def choose(self, title: str, text: str, answers: Sequence[str], *, is_grave: bool = False) -> str:
        """Ask for one of some answers. Enter alone chooses the last one."""
        await self._pause()
        return await self.app.push_screen_wait(Ask(title, text, answers, is_grave=is_grave))

    async def _pause(self) -> None:
        """Wait until the user pauses in typing: what is typed while a dialog rises would go to the dialog."""
        while (left := self._typed_at + PAUSE - time.monotonic()) > 0:  # noqa: ASYNC110 - until nothing happens
            await asyncio.sleep(left)

    async def ask(self, title: str, text: str, yes: str) -> bool:
        """Ask for a decision. That nothing is done is said too: Enter alone chooses that."""
        is_agreed = await self.choose(title, text, (yes, "Cancel"), is_grave=True) == yes
        if not is_agreed:
            self.say("Nothing was changed")
        return is_agreed

    async def tell(self, title: str, text: str) -> None:
        """Show a text until it is put away."""
        await self._pause()
        await self.app.push_screen_wait(Tell(title, text))

    def go(self, group_id: UUID, *, is_awaited: bool = False) -> None:
        """Open a group. What was typed in the one before is there again when that is opened.

        ``is_awaited``: what was typed since the command that opens it is for it, and stays. Another command, which
        opens a group meanwhile, has nothing typed ahead.
        """
        composer, former = self.query_one(Composer), self.room
        is_awaited = is_awaited and asyncio.current_task() is self._opening
        stays = is_awaited and bool(composer.text) and self._ahead.is_from(former)
        if former and former.group.group_id != group_id:
            former.typed, former.read_before = "" if stays else composer.text, None
            if self._sayings.pass_on():
                self._show_said()
        room = self.conversation.enter(group_id)
        if room is not former:
            self._held_back = []
        self._choose()
        if is_awaited and room:
            self._ahead.arrive()
        self._opened = group_id if room else None
        # The first group opens by itself, perhaps while a command is typed: that stays, a message does not.
        if room and room is not former and not stays and (former or not commands.is_command(composer.text)):
            composer.text = room.typed
            composer.move_cursor(composer.document.end)
        self._show()

    async def pick(self, title: str, look: Callable[[], list[Told]]) -> Message | None:
        """Have one of some messages chosen."""
        await self._pause()
        return await self.app.push_screen_wait(Pick(title, look))

    def go_to(self, message: Message) -> None:
        """Open a group at one of its messages."""
        self.go(message.group_id)
        if self.room and self.room.group.group_id == message.group_id:
            self.conversation.finder.go_to(self.room, message.sequence_num)
            self._show()
            self.query_one(Timeline).go_to(message.sequence_num)

    async def help(self, command: str = "") -> None:
        """Show keys and commands, or one of these."""
        if not command:
            self.action_help()
        elif (text := help_text.about_command(command)) is not None:
            self.say(text)
        else:
            raise CommandError(f"{formatting.harmless(command)} is no command; /help lists all of them")

    async def info(self) -> None:
        """Show what there is to know of the open group."""
        if self.room:
            await self.tell(self.room.name, await help_text.about(self.conversation, self.room))

    async def change_password(self) -> None:
        """Ask for the passwords, and change them."""
        passwords: Any = await self.app.push_screen_wait(NewPassword())
        if passwords:
            await self.conversation.client.change_password(*passwords)
            self.say("The password is changed: log in with it")

    async def log_out(self) -> None:
        """End the session, and forget what is here: that also without a server."""
        self._is_leaving, has_ended = True, True
        try:
            async with asyncio.timeout(LOGGED_OUT_WITHIN):
                await self.conversation.client.logout()
        except (ClientError, TimeoutError):
            has_ended = False
        self.app.post_message(self.LoggedOut(has_ended=has_ended))

    async def leave_chat(self) -> None:
        """End the program."""
        await self.app.run_action("quit")
