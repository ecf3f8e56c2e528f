"""The terminal as the chat reads and writes it: any bytes may come from it, and it may go away."""

import contextlib
import os
import re
import selectors
from codecs import getincrementaldecoder
from typing import IO, Any

from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

LOOKED_EVERY = 0.1
"""Ten times a second it is looked whether the chat ends, and whether an escape sequence is complete."""

_READ_AT_ONCE = 4096

_X10_MOUSE = re.compile(rb"\x1b\[M(?:...|.{0,2}\Z)", re.DOTALL)
"""A report of the mouse of before 1990: three bytes, which are no text and in no encoding, for a button and a place.

The chat asks for another kind, but a terminal that was attached anew may not know that.
"""


class Lasting:
    """A file that is written to as long as it is there."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> None:
        """Write a text; nothing is written to a terminal that is gone."""
        with contextlib.suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        """Write what is held back."""
        with contextlib.suppress(OSError):
            self._file.flush()

    def fileno(self) -> int:
        """Return the file's descriptor."""
        return self._file.fileno()


class Input:
    """Makes texts of the bytes of a terminal."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")
        self._begun = b""

    def text(self, data: bytes) -> str:
        """Return what was typed. Bytes that are no UTF-8 become U+FFFD; reports of the mouse in bytes are left out."""
        data = self._begun + data
        self._begun = b""
        found = list(_X10_MOUSE.finditer(data))
        if found and found[-1].end() - found[-1].start() < len(b"\x1b[M...") and found[-1].end() == len(data):
            self._begun = found[-1][0]
        return self._decoder.decode(_X10_MOUSE.sub(b"", data))


class TerminalDriver(LinuxDriver):
    """Reads keys, and ends the program when the terminal is gone. Textual's own would end with an error, or spin."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._file = Lasting(self._file)  # type: ignore[assignment, arg-type]  # it has what is used of a file

    def _run_input_thread(self) -> None:
        try:
            self.run_input_thread()
        except Exception as error:  # noqa: BLE001 - without it the program would go on, and take no key
            self._app.call_later(self._app._handle_exception, error)  # noqa: SLF001 - it has no public name

    def run_input_thread(self) -> None:
        """Hand on what is typed until the program ends, or the terminal is gone."""
        parser, typed = XTermParser(self._debug), Input()
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(LOOKED_EVERY):
                    try:
                        data = os.read(self.fileno, _READ_AT_ONCE)
                    except OSError:  # as from a terminal that was hung up
                        data = b""
                    if not data:
                        self._app.call_later(self._app.exit, "")
                        return
                    if text := typed.text(data):
                        for event in parser.feed(text):
                            self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)
