"""The terminal driver, which tolerates arbitrary input and the loss of the terminal."""

import contextlib
import os
import re
import selectors
from codecs import getincrementaldecoder
from typing import IO, Any

from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

POLL_SECONDS = 0.1
"""The interval for checking whether the chat ends, and whether an escape sequence is complete."""

_READ_AT_ONCE = 4096

_X10_MOUSE = re.compile(rb"\x1b\[M(?:...|.{0,2}\Z)", re.DOTALL)
"""An X10 mouse report: three bytes for button and position, in no encoding.

The chat requests another format, but a reattached terminal may not know that.
"""


class DetachableFile:
    """A file for output to a terminal that may disappear."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> None:
        """Write a text, ignoring errors."""
        with contextlib.suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        """Flush, ignoring errors."""
        with contextlib.suppress(OSError):
            self._file.flush()

    def fileno(self) -> int:
        """Return the file's descriptor."""
        return self._file.fileno()


class InputDecoder:
    """Decodes the bytes of a terminal."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")
        self._partial = b""

    def text(self, data: bytes) -> str:
        """Return the typed text. Invalid UTF-8 becomes U+FFFD; X10 mouse reports are removed."""
        data = self._partial + data
        self._partial = b""
        found = list(_X10_MOUSE.finditer(data))
        if found and found[-1].end() - found[-1].start() < len(b"\x1b[M...") and found[-1].end() == len(data):
            self._partial = found[-1][0]
        return self._decoder.decode(_X10_MOUSE.sub(b"", data))


class TerminalDriver(LinuxDriver):
    """Reads keys, and quits when the terminal is gone. Textual's driver would fail, or loop."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._file = DetachableFile(self._file)  # type: ignore[assignment, arg-type]  # has the methods that are used

    def _run_input_thread(self) -> None:
        try:
            self.run_input_thread()
        except Exception as error:  # noqa: BLE001 - otherwise the program would continue without input
            self._app.call_later(self._app._handle_exception, error)  # noqa: SLF001 - no public name

    def run_input_thread(self) -> None:
        """Process input until the program ends, or the terminal is gone."""
        parser, typed = XTermParser(self._debug), InputDecoder()
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(POLL_SECONDS):
                    try:
                        data = os.read(self.fileno, _READ_AT_ONCE)
                    except OSError:  # the terminal hung up
                        data = b""
                    if not data:
                        self._app.call_later(self._app.exit, "")
                        return
                    if text := typed.text(data):
                        for event in parser.feed(text):
                            self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)
