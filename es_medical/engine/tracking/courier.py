"""The one background thread of a run: sends the spool, waits longer and longer while the server is away."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from .sending import Sender
from .server import shown

POLL, FIRST_PAUSE, LONGEST_PAUSE = 1.0, 1.0, 60.0  # seconds
GRACE = 5.0  # seconds that the end of a run may wait for a server that does not answer


class Courier(threading.Thread):
    """Calls `sender.send` about once a second; a failure is told once and tried again later.

    Args:
        sender: What sends.
        say: Takes a message for the user.
        tick: Called about once a second, for the machine's own metrics.
    """

    def __init__(self, sender: Sender, say: Callable[[str], None], tick: Callable[[], None]) -> None:
        super().__init__(name="es_medical tracking", daemon=True)
        self.offline = False
        self._sender, self._say, self._tick = sender, say, tick
        self._wake, self._ending = threading.Event(), threading.Event()
        self._pause, self._next_try, self._deadline = FIRST_PAUSE, 0.0, float("inf")

    def run(self) -> None:
        """Send until told to end and nothing waits, or until the grace for a dead server is over."""
        while True:
            ending = self._ending.is_set()
            sent = self._attempt() if ending or time.monotonic() >= self._next_try else False
            if ending and (sent or time.monotonic() >= self._deadline):
                return
            if not ending:
                with suppress(Exception):  # a sensor that fails stops nothing
                    self._tick()
            self._wake.wait(POLL)
            self._wake.clear()
            if ending:
                time.sleep(POLL / 2)

    def finish(self) -> bool:
        """Wait until everything is sent, at most `GRACE` seconds when the server does not answer.

        Returns:
            Whether everything is sent.
        """
        self._deadline = time.monotonic() + GRACE
        self._ending.set()
        self._wake.set()
        while self.is_alive() and not (self.offline and time.monotonic() >= self._deadline):
            self.join(0.05)
        return not self.offline and not self.is_alive()

    def _attempt(self) -> bool:
        try:
            self._sender.send()
        except Exception as error:  # whatever it is, training goes on
            self._fail(error)
            return False
        if self.offline:
            self._say(f"the tracking server {shown(self._sender.uri)} answers again: everything kept is sent")
        self.offline, self._pause = False, FIRST_PAUSE
        return True

    def _fail(self, error: Exception) -> None:
        if not self.offline:
            cause = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            self._say(
                f"the tracking server {shown(self._sender.uri)} does not take the log ({cause}). "
                f"Training goes on; everything is kept in {self._sender.spool.folder} and sent when it answers again"
            )
        self.offline = True
        self._next_try = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
