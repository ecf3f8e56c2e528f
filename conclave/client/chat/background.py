"""What goes on in the background of a conversation: none of it is forgotten, and no failure of it is silent."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from conclave.client.chat.observer import Listener
from conclave.client.errors import ClientError, NoAnswerError, SessionOverError, describe_error


class Background:
    """Tasks that are held until they are done. The first that fails ends the conversation."""

    def __init__(self, listener: Listener) -> None:
        """``listener``: is told of failures."""
        self._listener = listener
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_ended = False

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
        """Do something in the background."""
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        task.add_done_callback(lambda _: work.close())  # it has not begun if the task was cancelled before
        return task

    async def end(self) -> None:
        """Stop everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not self._has_ended:
            self._has_ended = True
            self._listener.ended(error)

    async def _guarded(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something. What only the connection is to blame for is not told: it shows itself."""
        try:
            await work
        except SessionOverError:
            raise
        except NoAnswerError:
            pass
        except ClientError as error:
            self._listener.say(describe_error(error), is_bad=True)
