"""Runs the background tasks of a conversation, and reports their failures."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from conclave.client.chat.observer import ConversationObserver
from conclave.client.errors import ClientError, NoAnswerError, SessionOverError, describe_error


class Background:
    """Holds tasks until they are done. The first failure ends the conversation."""

    def __init__(self, observer: ConversationObserver) -> None:
        """``observer``: is notified of failures."""
        self._observer = observer
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_ended = False

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
        """Start a task."""
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        task.add_done_callback(lambda _: work.close())  # a task that was cancelled early never starts it
        return task

    async def end(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not self._has_ended:
            self._has_ended = True
            self._observer.conversation_ended(error)

    async def _guarded(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a task and show its errors. Connection errors are ignored: the status line shows the connection."""
        try:
            await work
        except SessionOverError:
            raise
        except NoAnswerError:
            pass
        except ClientError as error:
            self._observer.show_status(describe_error(error), is_error=True)
