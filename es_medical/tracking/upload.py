"""Upload the events of a spool: from a thread during the run, and any rest later."""

import json
import shlex
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from es_medical.tracking.events import SINGLE, Earlier, has_run, log_metrics, start_run
from es_medical.tracking.names import cut
from es_medical.tracking.server import connect, is_final, shown
from es_medical.tracking.spool import Event, Line, Spool, State, abandoned, read_state

if TYPE_CHECKING:
    from mlflow import MlflowClient

POLL, FIRST_PAUSE, LONGEST_PAUSE = 1.0, 1.0, 60.0  # seconds
GRACE = 5.0  # seconds that the end of a run waits at most for a server that does not answer
LINES_AT_ONCE = 100


def say(message: str) -> None:
    """Print a message for the user on standard error."""
    print(f"es_medical: {message}", file=sys.stderr, flush=True)


class Uploader:
    """Sends the unsent events of `spool` to the server at `uri`, in order.

    Args:
        spool: The events of one run.
        uri: As returned by `resolve_uri`.
    """

    def __init__(self, spool: Spool, uri: str) -> None:
        self.spool, self.uri = spool, uri
        self._client: MlflowClient | None = None
        self._earlier: Earlier | None = None
        if spool.state.run_id is None:
            spool.keep(replace(spool.state, uri=shown(uri)))  # no password on the disk

    @property
    def moved(self) -> bool:
        """Whether a part was sent to another address: that of the same server, or of another one, which gets everything."""
        return self.spool.state.uri != shown(self.uri)

    def send(self) -> None:
        """Send until all events are sent.

        Raises:
            Exception: Any error of the client if the server cannot be reached; the events stay in the spool.
        """
        if self.moved:
            self._client, state = connect(self.uri), self.spool.state
            new = state if has_run(self._client, self._run_id()) else State(key=state.key)
            self.spool.keep(replace(new, uri=shown(self.uri)))
        while lines := self.spool.pending(LINES_AT_ONCE):
            for kind, group in groupby(lines, key=lambda line: line.event["kind"]):
                same = list(group)
                for batch in [same] if kind == "metrics" else [[line] for line in same]:
                    self._send_batch(batch)

    def _send_batch(self, batch: list[Line]) -> None:
        self._client = self._client or connect(self.uri)
        refused = False
        try:
            self._dispatch(batch)
        except Exception as error:
            if not is_final(error) or batch[0].event["kind"] == "start":
                raise
            if len(batch) > 1:  # find the one that is wrong
                for line in batch:
                    self._send_batch([line])
                return
            self._refuse(batch[0].event, error)
            refused = True
        self.spool.keep(replace(self.spool.state, sent=batch[-1].end))
        if not refused:
            self.spool.discard_files(line.event for line in batch)

    def _dispatch(self, batch: list[Line]) -> None:
        client, event = self._client, batch[0].event
        assert client is not None
        if event["kind"] == "start":
            start_run(client, self.spool, event, self.uri)
            self._earlier = None  # this session's points are earlier ones for the next in the same spool
        elif event["kind"] == "metrics":
            self._earlier = self._earlier or Earlier(client, self._run_id())
            log_metrics(client, self._run_id(), [line.event for line in batch], self._earlier)
        elif event["kind"] in SINGLE:
            SINGLE[event["kind"]](client, self.spool, self._run_id(), event)
        else:
            raise ValueError(f"unknown event {event['kind']!r}; known: start, metrics, {', '.join(SINGLE)}")

    def _run_id(self) -> str:
        run_id = self.spool.state.run_id
        if run_id is None:
            raise ValueError("the spool holds an event before the start of the run")
        return run_id

    def _refuse(self, event: Event, error: Exception) -> None:
        refused = self.spool.state.refused
        if refused == 0:
            say(f"the tracking server refuses a {event['kind']} entry: {cut(str(error), 300)}")
        self.spool.keep(replace(self.spool.state, refused=refused + 1))
        with (self.spool.folder / "refused.jsonl").open("a") as stream:
            stream.write(json.dumps(event | {"cause": str(error)}) + "\n")


class UploadThread(threading.Thread):
    """Calls `uploader.send` about once a second; reports a failure once and retries later.

    Args:
        uploader: Sends the events.
        tick: Called about once a second, for the machine's own metrics.
    """

    def __init__(self, uploader: Uploader, tick: Callable[[], None]) -> None:
        super().__init__(name="es_medical tracking", daemon=True)
        self.offline = False
        self._uploader, self._tick = uploader, tick
        self._ending = threading.Event()
        self._pause, self._next_try, self._deadline = FIRST_PAUSE, 0.0, float("inf")

    def run(self) -> None:
        """Send until `finish` is called and all is sent, or the grace period for a dead server is over."""
        while True:
            ending = self._ending.is_set()
            sent = (ending or time.monotonic() >= self._next_try) and self._attempt()
            if ending and (sent or time.monotonic() >= self._deadline):
                return
            if ending:
                time.sleep(POLL / 2)
                continue
            with suppress(Exception):  # a failing sensor stops nothing
                self._tick()
            self._ending.wait(POLL)

    def finish(self) -> None:
        """Wait until everything is sent, at most `GRACE` seconds if the server does not answer."""
        self._deadline = time.monotonic() + GRACE
        self._ending.set()
        while self.is_alive() and not (self.offline and time.monotonic() >= self._deadline):
            self.join(0.05)

    def _attempt(self) -> bool:
        try:
            self._uploader.send()
        except Exception as error:  # training continues after any error
            self._fail(error)
            return False
        if self.offline:
            say(f"the tracking server {shown(self._uploader.uri)} answers again: everything kept is sent")
        self.offline, self._pause = False, FIRST_PAUSE
        return True

    def _fail(self, error: Exception) -> None:
        if not self.offline:
            cause = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            say(
                f"the tracking server {shown(self._uploader.uri)} does not take the log ({cause}). "
                f"Training goes on; everything is kept in {self._uploader.spool.folder} and sent when it answers again"
            )
        self.offline = True
        self._next_try = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


def close_spool(spool: Spool, uri: str) -> bool:
    """Remove the spool if the server has everything; otherwise keep it and print how to send the rest.

    Returns:
        Whether the server has everything.
    """
    waiting, refused = spool.count(), spool.state.refused
    if waiting + refused == 0:
        spool.remove()
        return True
    spool.close()
    if waiting:
        say(f"{waiting} log entries are not sent yet. Send them later with\n  {_command(spool.folder, uri)}")
    if refused:
        say(f"{refused} log entries were refused by the server: see {spool.folder / 'refused.jsonl'}")
    return False


def tell_abandoned(folder: Path, mine: Path, uri: str) -> None:
    """Report the unsent logs of ended processes, other than the spool `mine`, and how to send them.

    Args:
        folder: Folder of the spools of several runs.
        mine: The spool in use.
        uri: Tracking server for a log not yet sent to any server.
    """
    left = abandoned(folder, mine)
    if not left:
        return
    states = [(path, read_state(path)) for path in left]
    commands = [_command(path, (state and state.uri) or uri) for path, state in states]
    say(
        f"{len(left)} earlier run(s) in {folder} ended without sending all of their log (killed, or no server). "
        "Send it (a run that was killed becomes FAILED) with\n  " + "\n  ".join(commands)
    )


def _command(spool: Path, uri: str) -> str:
    """Return the shell command that sends `spool`, without a password."""
    return f"python -m es_medical.tracking send {shlex.quote(str(spool))} --uri {shlex.quote(shown(uri))}"
