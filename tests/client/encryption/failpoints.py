"""Steps of a client at which it can die: before and after each request and each write. And answers that are lost."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from conclave.client import Client, History, MlsCodec, NoAnswerError


class Failpoints:
    """Counts the steps of one client, and dies at one of them; counts its requests, and loses the answer to one.

    ``die``: kills the process, or raises; it is called at each step from the last one on. 0: at none.
    """

    def __init__(self, die: Callable[[], None], last_step: int = 0, lost_answer: int = 0) -> None:
        self.is_dead = False
        self._armed: list[tuple[object, str]] = []
        self._die, self._left, self._until_lost = die, last_step, lost_answer

    def step(self) -> None:
        """Come to the next step."""
        self._left -= 1
        if self.is_dead or self._left == 0:
            self.is_dead = True
            self._die()

    def loses(self) -> bool:
        """Come to the next answer; tell whether it is lost."""
        self._until_lost -= 1
        return self._until_lost == 0

    def arm(self, client: Client, codec: MlsCodec, history: History) -> None:
        """Put a step around each request, each write of keys, and each write of the history."""
        ask, transaction, store = client.transport.request, codec._database.transaction, history.store

        async def stepping_ask(call: Any, *values: Any, **named: Any) -> Any:
            self.step()
            try:
                answer = await ask(call, *values, **named)
                if self.loses():
                    if not call.repeatable:
                        raise NoAnswerError("the answer was lost")
                    answer = await ask(call, *values, **named)
                return answer
            finally:
                self.step()

        @contextmanager
        def stepping_transaction() -> Iterator[Any]:
            with transaction() as connection:
                yield connection
                self.step()
            self.step()

        def stepping_store(*values: Any, **named: Any) -> bool:
            self.step()
            done = store(*values, **named)
            self.step()
            return done

        self._put(client.transport, "request", stepping_ask)
        self._put(codec._database, "transaction", stepping_transaction)
        self._put(history, "store", stepping_store)

    def disarm(self) -> None:
        """Have the client go on without steps."""
        for of, name in self._armed:
            delattr(of, name)
        self._armed.clear()
        self._left = self._until_lost = 0

    def _put(self, of: object, name: str, stepping: Callable[..., Any]) -> None:
        setattr(of, name, stepping)  # over the method of the class
        self._armed.append((of, name))
