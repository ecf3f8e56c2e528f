"""The main screen: groups on the left, the open group on the right, and the input field."""

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

from conclave.client.chat import commands, formatting, help_text, key_handlers
from conclave.client.chat.bars import KeyLine, heading, top_line
from conclave.client.chat.command_context import CommandError, MessageChoice
from conclave.client.chat.composer import Composer
from conclave.client.chat.conversation import Conversation
from conclave.client.chat.dialogs import MessagePicker, PasswordDialog, QuestionDialog, TextDialog
from conclave.client.chat.notifications import NotificationMode, Notifier
from conclave.client.chat.rooms import Room
from conclave.client.chat.rows import RowContext
from conclave.client.chat.sidebar import Sidebar
from conclave.client.chat.status_messages import StatusMessages
from conclave.client.chat.timeline import Timeline
from conclave.client.chat.type_ahead import TypeAhead
from conclave.client.errors import ClientError, NoAnswerError, SessionOverError, describe_error
from conclave.client.events import Message

TICK_SECONDS = 0.2
"""Expired messages disappear within 0.2 seconds."""

BATCH_SECONDS = 0.03
"""Changes within 30 ms are drawn together."""

COMPACT_HEIGHT = 20
"""Below 20 rows, the heading has only the essentials."""

MIN_HEADING_HEIGHT, MIN_STATUS_HEIGHT = 8, 5
"""Below 8 rows there is no heading, below 5 only messages and the input field."""

LOGOUT_TIMEOUT = 3.0
"""Logging out waits at most 3 seconds for the server."""

QUIT_HINT = "Press Ctrl+C again to quit"
"""A second Ctrl+C quits while this is shown."""

TYPING_PAUSE = 0.5
"""Dialogs open after half a second without typing."""

CHOOSING_KEYS = ("pageup", "pagedown", "ctrl+g", "ctrl+end", "escape")
"""Keys that count as choosing the open group, if it was opened automatically."""

TIMER_HINT = "A message here self-destructs. Its timer starts once you choose the group, for example with Ctrl+G"

WIDGETS = ("Sidebar", "Timeline", "Composer", "#room", "#bar", "#head", "#welcome", "#status", "#hint")
"""Selectors of the widgets that are updated."""


class ChatScreen(Screen[None]):
    """Shows a conversation, and handles input."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "Help"),
        Binding("f2", "info", "Group"),
        Binding("ctrl+n", "prefill('/new ')", "New"),
        Binding("ctrl+up,alt+up", "step(-1)", "Groups", key_display="Alt+↑↓"),
        Binding("ctrl+down,alt+down", "step(1)", show=False),
        Binding("ctrl+g", "step_unread", "Unread", key_display="^g"),
        Binding("escape", "type", "Type", show=False, priority=True),
    ]

    class ConversationEnded(UiMessage):
        """The conversation has ended."""

        def __init__(self, why: Exception) -> None:
            self.why = why
            super().__init__()

    class LoggedOut(UiMessage):
        """The user has logged out. ``has_ended``: the server has ended the session."""

        def __init__(self, *, has_ended: bool) -> None:
            self.has_ended = has_ended
            super().__init__()

    conversation: Conversation
    """The conversation; set before the screen is shown."""

    def __init__(self, *, is_plain: bool, notifications: NotificationMode = NotificationMode.OFF) -> None:
        """``is_plain``: for screen readers. ``notifications``: how to notify the user."""
        super().__init__()
        self._is_plain = is_plain
        self._notifier = Notifier(notifications, self._write)
        self._is_reviewing = False
        self._second = 0
        self._is_leaving = False
        self._opened: UUID | None = None
        self._typed_at = 0.0
        self._is_chosen = False
        self._unstarted_timers: list[int] = []  # seen before the user chose the group
        self._has_lost = False
        self._is_stale: set[str] = set()
        self._error = ""
        self._error_line: str | None = None
        self._type_ahead = TypeAhead()
        self._opening: asyncio.Task[Any] | None = None  # executes the command that ``_type_ahead`` holds lines for
        self._statuses = StatusMessages()

    @property
    def room(self) -> Room | None:
        """The open group."""
        open_group_id = self.conversation.open_group_id
        return self.conversation.rooms.all.get(open_group_id) if open_group_id else None

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield Static(id="bar")
        with Horizontal():
            yield Sidebar(id="sidebar", compact=True)
            with Vertical(id="room"):
                yield Static(id="head")
                yield Timeline(id="timeline")
                yield Static(id="welcome")
                yield Static(id="status")
                yield Static(id="hint")
                yield Composer(
                    id="composer",
                    placeholder="Message, or / for commands",
                    submit=self._submit,
                    on_key_press=self._handle_key,
                    names=self._names,
                )
        yield KeyLine(id="keys")

    def on_mount(self) -> None:
        """Start the timer, and show everything."""
        self.set_interval(TICK_SECONDS, self._tick)
        self.app.theme_changed_signal.subscribe(self, lambda _: self.rooms_changed())
        self.query_one(Composer).focus()
        self._show()
        self._show_statuses()

    # The observer of the conversation.

    def rooms_changed(self) -> None:
        """Update groups, invites and the connection."""
        self._schedule("rooms")

    def room_changed(self, group_id: UUID) -> None:
        """Update a group if it is open."""
        if group_id == self.conversation.open_group_id:
            self._schedule("room")

    def show_status(self, text: str, *, is_error: bool = False) -> None:
        """Show a short message; in plain mode as a notice in the group, where it can be read again."""
        if self._is_plain and self.room:
            self.room.notice(formatting.sanitize(text), self.conversation.now())
            self._schedule("room")
            return
        self._statuses.add(formatting.sanitize(text), is_error=is_error)
        self._show_statuses()

    def _show_statuses(self) -> None:
        """Update the status messages."""
        if self._is_closing():
            return
        said = self.query_one("#status", Static)
        shown = self._statuses.all[-1:] if self.size.height < COMPACT_HEIGHT else self._statuses.all
        said.display = bool(shown) and self.size.height >= MIN_STATUS_HEIGHT
        rows = (Content(each.text).stylize("$error" if each.is_error else "$accent") for each in shown)
        said.update(Content("\n").join(rows))

    def _refuse(self, line: str, why: str) -> None:
        """Show by the input field why a line was rejected, until it is changed.

        The line is restored and selected, so that typing replaces it. If the next line was started, that stays, and the
        reason is shown until it is sent.
        """
        composer = self.query_one(Composer)
        self._error, self._error_line = formatting.sanitize(why), None if composer.text else line
        if not composer.text:
            composer.restore_line(line)
        self._show_hint()
        if self._is_plain and self.room:
            self.show_status(why, is_error=True)

    def conversation_ended(self, why: Exception) -> None:
        """Report the end of the conversation to the application, except an expected end of the session at logout."""
        if not (self._is_leaving and isinstance(why, SessionOverError)):
            self.app.post_message(self.ConversationEnded(why))

    def _schedule(self, what: str) -> None:
        if not self.is_running:
            return
        if not self._is_stale:
            self.set_timer(BATCH_SECONDS, self._show)
        self._is_stale.add(what)

    # Drawing.

    def _show(self) -> None:
        self._is_stale.clear()
        if self._is_closing():
            return
        conversation, room = self.conversation, self.room
        if room is None and self._opened:
            self._handle_lost_group()
        if room is None and not (self._has_lost or self._type_ahead.line) and (first := conversation.initial_room()):
            self.open_group(first.group.group_id)
            self._is_chosen = False
            return
        self.query_one(Sidebar).show(conversation.rooms, conversation.open_group_id, conversation.now())
        self.query_one("#bar", Static).update(top_line(conversation, room, self.size.width, is_plain=self._is_plain))
        is_low = self.size.height < COMPACT_HEIGHT
        head = heading(room, conversation.user_id, is_plain=self._is_plain, is_low=is_low) if room else Content("")
        self.query_one("#head", Static).update(head)
        self.query_one("#head").display = room is not None and self.size.height >= MIN_HEADING_HEIGHT
        timeline, welcome = self.query_one(Timeline), self.query_one("#welcome", Static)
        timeline.display, welcome.display = room is not None, room is None
        nothing = help_text.WELCOME if conversation.offline is None else help_text.CONNECTING
        welcome.update(Content(help_text.CHOOSE if conversation.rooms.all else nothing))
        items = list(room.items(conversation.now())) if room else []
        timeline.show(conversation.open_group_id, items, self._row_context(room))
        if room:
            room.is_at_end = timeline.is_at_end()
        self._show_hint()

    def _is_closing(self) -> bool:
        """Tell whether the widgets are being removed, while timers may still fire."""
        try:
            for each in WIDGETS:  # Textual caches the result of query_one only
                self.query_one(each)
        except NoMatches:
            return True
        return False

    def _handle_lost_group(self) -> None:
        """Handle the loss of the open group. No other group is opened, so that typed text is not sent there."""
        self._opened, self._has_lost = None, True
        composer = self.query_one(Composer)
        if not commands.is_command(composer.text):
            composer.text = ""

    def _row_context(self, room: Room | None) -> RowContext:
        rooms = self.conversation.rooms
        context = RowContext(0, rooms.display_name, rooms.user_id, self.conversation.now(), is_plain=self._is_plain)
        context = replace(context, is_online=self.conversation.offline is None)
        if room is None:
            return context
        username = self.conversation.client.session.username
        context = replace(context, mentions_user=partial(room.mentions_user, username))
        return replace(context, read_before=room.read_before, has_later=room.has_later, found=room.found)

    def _show_hint(self) -> None:
        """Show the error of a line, or completions and previews for what is being typed."""
        if self._is_closing():
            return
        text = self.query_one(Composer).text
        hint = self.query_one("#hint", Static)
        if self._error and self._error_line in (None, text):
            hint.display = self.size.height >= MIN_STATUS_HEIGHT
            hint.update(Content(self._error).stylize("$error"))
            return
        self._error = ""
        if self._type_ahead.lines and not text:
            hint.display = self.size.height >= MIN_STATUS_HEIGHT
            hint.update(
                Content(f"{formatting.count(len(self._type_ahead.lines), 'line')} waiting for {self._type_ahead.line}")
            )
            return
        if names := self.query_one(Composer).name_suggestions():
            hint.display = self.size.height >= MIN_STATUS_HEIGHT
            hint.update(Content("  ".join(f"@{formatting.sanitize(each)}" for each in names)))
            return
        if self.room and (quote := commands.quoted_by(text, self.conversation, self.room)):
            hint.display = self.size.height >= MIN_STATUS_HEIGHT
            hint.update(Content(quote))
            return
        found = commands.matching(text) if text.startswith("/") and "\n" not in text else []
        hint.display = bool(found) and self.size.height >= MIN_STATUS_HEIGHT
        if len(found) == 1:
            hint.update(Content.assemble((found[0].usage, "bold"), f"  {found[0].description}"))
        elif found:
            hint.update(Content("  ".join(f"/{each.name}" for each in found)))

    def _tick(self) -> None:
        """Update countdowns each second of the server's time."""
        now = self.conversation.now()
        if now != self._second and not self._is_closing():
            if any(self._second < each.muted_until <= now for each in self.conversation.rooms.all.values()):
                self._schedule("rooms")
            self._second = now
            self.query_one(Timeline).tick(now)
            self._show_hint()  # its quote may have expired
            self.save_unsent()
        if self.app.screen is self and self.app.app_focus and self._statuses.tick(TICK_SECONDS):
            self._show_statuses()

    def save_unsent(self) -> None:
        """Save what is typed, for after a crash."""
        typed = self.query_one(Composer).text
        self.conversation.unsent.save(self.room, "" if commands.is_command(typed) else typed)

    # Input.

    def on_text_area_changed(self) -> None:
        """Update the hint."""
        self._typed_at = time.monotonic()
        self._show_hint()

    def _submit(self, text: str) -> None:
        """Execute a command, or send a message."""
        self._error = ""
        if self._statuses.clear_info():
            self._show_statuses()
        if self._type_ahead.capture(text, self.room):
            self._show_hint()
        elif commands.opens_group(text) and not self._type_ahead.line:
            self._type_ahead.begin(text, self.room)
            self.run_worker(self._open(text, self.room))
        elif commands.is_command(text):
            self._execute(text)
        elif self.room is None:
            self._refuse(text, "No group is open. Create one with /new NAME, or accept an invite with /accept")
        else:
            text = text.removeprefix("/")
            self._choose()
            self.conversation.send_queue.send(self.room, text, self.room.self_destruct_seconds)
            self.go_to_end()

    def go_to_end(self) -> None:
        """Show the newest messages."""
        if self.room:
            self.conversation.load_last(self.room)
        self._show()
        self.query_one(Timeline).go_to_end()

    def _names(self) -> list[str]:
        """Return the names of the other members of the open group."""
        members = self.room.group.members if self.room else ()
        return [each.username for each in members if each.user_id != self.conversation.user_id]

    def _handle_key(self, key: str) -> bool:
        """Handle a key outside of editing; return whether it was handled."""
        timeline = self.query_one(Timeline)
        keys: dict[str, Callable[[], None]] = {
            "pageup": timeline.action_page_up,
            "pagedown": timeline.action_page_down,
            "ctrl+g": self.action_step_unread,
            "ctrl+end": self.go_to_end,
            "ctrl+c": self.interrupt,
            "escape": self._mark_read,
            **dict.fromkeys(("alt+up", "ctrl+up"), partial(self.action_step, -1)),
            **dict.fromkeys(("alt+down", "ctrl+down"), partial(self.action_step, 1)),
        }
        if key in keys:
            keys[key]()
        if key in CHOOSING_KEYS:
            self._choose()
        return key in keys

    def interrupt(self) -> None:
        """Quit on the second Ctrl+C in a row."""
        if self._statuses.has(QUIT_HINT):
            self.run_worker(self.leave_chat())
            return
        self._statuses.add(QUIT_HINT)
        self._show_statuses()

    def on_sidebar_chosen(self, event: Sidebar.Chosen) -> None:
        """Open a group, or answer an invite."""
        if event.group_id:
            self.open_group(event.group_id)
            self.query_one(Composer).focus()
        elif event.invite_id:
            self._answer(event.invite_id)

    def on_timeline_seen(self, event: Timeline.Seen) -> None:
        """Mark messages as seen. In a group that was opened automatically, no timers start."""
        numbers = event.numbers
        if self.room and not self._is_chosen:
            burning = {each.sequence_num for each in self.room.messages.values() if each.self_destruct_seconds}
            self._unstarted_timers += [each for each in numbers if each in burning]
            numbers = [each for each in numbers if each not in burning]
            if self._unstarted_timers:
                self.show_status(TIMER_HINT)
        self.conversation.mark_seen(event.group_id, numbers)

    def _choose(self) -> None:
        """Record that the user chose the open group: timers start."""
        held_back, self._unstarted_timers = self._unstarted_timers, []
        self._is_chosen = True
        if self.room and held_back:
            self.conversation.mark_seen(self.room.group.group_id, held_back)

    def on_timeline_reached_start(self) -> None:
        """Load earlier messages."""
        if self.room and self.room.has_earlier and self.conversation.load_earlier(self.room):
            self._schedule("room")

    def on_timeline_reached_end(self) -> None:
        """Load later messages."""
        if self.room and self.room.has_later and self.conversation.load_later(self.room):
            self._schedule("room")

    def on_screen_resume(self) -> None:
        """Report visible messages after a dialog was closed."""
        self.query_one(Timeline).report_visible()

    def on_resize(self) -> None:
        """Adjust to the size."""
        self.set_class(self.size.height < MIN_HEADING_HEIGHT, "tiny")
        self.set_class(self.size.height < MIN_STATUS_HEIGHT, "least")
        self._schedule("room")
        self._show_statuses()

    def action_help(self) -> None:
        """Show the help."""
        self.app.push_screen(TextDialog("Keys and commands", help_text.help_content()))

    def action_info(self) -> None:
        """Show details of the open group."""
        self._execute("/info")

    def action_prefill(self, text: str) -> None:
        """Put the start of a command into the input field."""
        self.query_one(Composer).prefill(text)

    def action_type(self) -> None:
        """Focus the input field. If it has the focus, it handles Escape itself."""
        composer = self.query_one(Composer)
        if composer.has_focus:
            raise SkipAction
        self.set_focus(composer)

    def _mark_read(self) -> None:
        """Mark the group as read, if the input field is empty."""
        if self.room and not self.query_one(Composer).text:
            self.conversation.mark_read(self.room)

    def action_step(self, by: int) -> None:
        """Open the next or the previous group."""
        rooms = self.conversation.rooms.ordered()
        if rooms:
            here = next((index for index, each in enumerate(rooms) if each is self.room), -1 if by > 0 else 0)
            self.open_group(rooms[(here + by) % len(rooms)].group.group_id)

    def action_step_unread(self) -> None:
        """Go to unread messages outside the screen, or open the next group with unread messages."""
        if self.room and self.room.unread and not self.query_one(Timeline).is_shown(self.room.unread_from):
            self.query_one(Timeline).reset_position()
            self.open_group(self.room.group.group_id)
            return
        unread = [each for each in self.conversation.rooms.ordered() if each.unread and each is not self.room]
        if unread:
            self.open_group(unread[0].group.group_id)
        else:
            self.show_status("No more unread messages")

    def _execute(self, line: str) -> None:
        """Execute a command for the open group, in the background if it has to wait."""
        work = self._run(line, self.room)
        if not commands.is_immediate(line):
            self.run_worker(work)
            return
        try:
            work.send(None)
        except StopIteration:
            return
        raise RuntimeError(f"{line.partition(' ')[0]} is marked as immediate, but waits")

    async def _open(self, line: str, room: Room | None) -> None:
        """Execute a command that opens a group, then the lines typed after it if the group is open."""
        self._opening = asyncio.current_task()
        await self._run(line, room)
        lines, is_there = self._type_ahead.finish()
        if is_there:
            for each in lines:
                self._submit(each)
        elif lines:
            self._restore_lines(line, lines)
        self._schedule("room")

    def _restore_lines(self, line: str, lines: list[str]) -> None:
        """Report lines that were not executed. Messages return to the input field; commands can be recalled."""
        composer = self.query_one(Composer)
        messages = [each for each in lines if not commands.is_command(each)]
        if messages:
            begun = composer.text if composer.text != line else ""
            composer.prefill("\n".join([*messages, *([begun] if begun else [])]))
            self._error_line = None
        self._error = f"{formatting.sanitize(line)}: {self._error}. The lines after it were not sent"
        self._show_hint()

    async def _run(self, line: str, room: Room | None) -> None:
        """Execute a command. After an error, the line is restored for correction."""
        try:
            await commands.run(self, line, room)
            self._schedule("room")
        except SessionOverError as error:
            self.conversation_ended(error)
        except NoAnswerError as error:
            self._refuse(line, f"{error}. It may have been executed: check before you try again")
        except (ClientError, CommandError, ValueError) as error:
            self._refuse(line, describe_error(error))

    def notify_user(self, room: Room, message: Message) -> None:
        """Notify the user, unless the group is visible."""
        if not (room is self.room and self.app.app_focus and self.app.screen is self):
            self._notifier.notify(self.conversation.rooms.display_name(message.sender_id), room.name, message)

    def _write(self, sequence: str) -> None:
        """Write an escape sequence to the terminal."""
        driver = self.app._driver  # noqa: SLF001 - textual has no public way but for the bell; its version is bounded
        if driver is not None:
            driver.write(sequence)

    def review_keys(self, group_id: UUID) -> None:
        """Ask about changed keys, if the group is open and no such dialog is."""
        if self.room and self.room.group.group_id == group_id and not self._is_reviewing and self.is_running:
            self._is_reviewing = True
            self._review(self.room)

    @work
    async def _review(self, room: Room) -> None:
        try:
            await key_handlers.review_changed_keys(self, room)
        except ClientError as error:
            self.show_status(describe_error(error), is_error=True)
        finally:
            self._is_reviewing = False

    @work
    async def _answer(self, invite_id: UUID) -> None:
        invite = next((each for each in self.conversation.rooms.invites if each.invite_id == invite_id), None)
        if invite is None:
            return
        who, where = formatting.display_name(invite.inviter_username), formatting.display_name(invite.group_name)
        to = formatting.name_with_title(invite.group_name, invite.group_alias)
        text = f"{who} invited you to {to} on {formatting.date_and_time(invite.created_at)}."
        answer = await self.app.push_screen_wait(QuestionDialog(f"Join {where}?", text, ("Accept", "Decline", "Later")))
        if answer != "Later":
            self._execute(f"/{answer.lower()} {invite.group_name}")

    # The context of commands.

    async def choose(self, title: str, text: str, answers: Sequence[str], *, is_destructive: bool = False) -> str:
        """Ask the user to choose an answer. Enter chooses the last one."""
        await self._pause()
        return await self.app.push_screen_wait(QuestionDialog(title, text, answers, is_destructive=is_destructive))

    async def _pause(self) -> None:
        """Wait for a pause in typing, so that keys do not go to the dialog."""
        while (left := self._typed_at + TYPING_PAUSE - time.monotonic()) > 0:  # noqa: ASYNC110 - no event
            await asyncio.sleep(left)

    async def confirm(self, title: str, text: str, yes: str) -> bool:
        """Ask for confirmation. The default is no."""
        is_confirmed = await self.choose(title, text, (yes, "Cancel"), is_destructive=True) == yes
        if not is_confirmed:
            self.show_status("Cancelled")
        return is_confirmed

    async def show_text(self, title: str, text: str) -> None:
        """Show a text until it is closed."""
        await self._pause()
        await self.app.push_screen_wait(TextDialog(title, text))

    def open_group(self, group_id: UUID, *, is_requested: bool = False) -> None:
        """Open a group. The text typed in the previous one is restored when that is opened again.

        ``is_requested``: text typed since the command that opens the group is for it, and stays. Another command that
        opens a group meanwhile has no such text.
        """
        composer, previous = self.query_one(Composer), self.room
        is_requested = is_requested and asyncio.current_task() is self._opening
        stays = is_requested and bool(composer.text) and self._type_ahead.applies_to(previous)
        if previous and previous.group.group_id != group_id:
            previous.typed, previous.read_before = "" if stays else composer.text, None
            if self._statuses.clear_info():
                self._show_statuses()
        room = self.conversation.open_group(group_id)
        if room is not previous:
            self._unstarted_timers = []
        self._choose()
        if is_requested and room:
            self._type_ahead.mark_open()
        self._opened = group_id if room else None
        # The first group opens automatically: a command that is being typed stays, a message does not.
        if room and room is not previous and not stays and (previous or not commands.is_command(composer.text)):
            composer.text = room.typed
            composer.move_cursor(composer.document.end)
        self._show()

    async def pick_message(self, title: str, look: Callable[[], list[MessageChoice]]) -> Message | None:
        """Let the user choose a message."""
        await self._pause()
        return await self.app.push_screen_wait(MessagePicker(title, look))

    def go_to(self, message: Message) -> None:
        """Open a group at one of its messages."""
        self.open_group(message.group_id)
        if self.room and self.room.group.group_id == message.group_id:
            self.conversation.finder.go_to(self.room, message.sequence_num)
            self._show()
            self.query_one(Timeline).go_to(message.sequence_num)

    async def help(self, command: str = "") -> None:
        """Show the help, or that of one command."""
        if not command:
            self.action_help()
        elif (text := help_text.about_command(command)) is not None:
            self.show_status(text)
        else:
            raise CommandError(f"{formatting.sanitize(command)} is not a command; /help lists all commands")

    async def info(self) -> None:
        """Show details of the open group."""
        if self.room:
            await self.show_text(self.room.name, await help_text.about(self.conversation, self.room))

    async def change_password(self) -> None:
        """Ask for the passwords, and change them."""
        passwords: Any = await self.app.push_screen_wait(PasswordDialog())
        if passwords:
            await self.conversation.client.change_password(*passwords)
            self.show_status("Password changed. Log in with the new one")

    async def log_out(self) -> None:
        """End the session, if the server answers, and erase local data."""
        self._is_leaving, has_ended = True, True
        try:
            async with asyncio.timeout(LOGOUT_TIMEOUT):
                await self.conversation.client.logout()
        except (ClientError, TimeoutError):
            has_ended = False
        self.app.post_message(self.LoggedOut(has_ended=has_ended))

    async def leave_chat(self) -> None:
        """Quit the program."""
        await self.app.run_action("quit")
