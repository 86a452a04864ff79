"""Sends a spool's events to MLflow so that sending one twice changes nothing: each is logged exactly once."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from .entries import METRICS_AT_ONCE, SINGLE, log_metrics, start_run
from .names import cut
from .server import connect, is_final, shown
from .spool import Event, Line, Spool, State

if TYPE_CHECKING:
    from mlflow import MlflowClient

LINES_AT_ONCE = 500


class Sender:
    """Sends what waits in `spool` to the server at `uri`, in order.

    Args:
        spool: The events of one run.
        uri: As from `resolve_uri`.
        say: Takes a message for the user.
    """

    def __init__(self, spool: Spool, uri: str, say: Callable[[str], None]) -> None:
        self.spool, self.uri, self._say = spool, uri, say
        self._client: MlflowClient | None = None
        state, place = spool.state, shown(uri)  # no password on the disk
        same = state.uri in (None, place)
        spool.keep(replace(state, uri=place) if same else State(key=state.key, uri=place))  # a new server has nothing

    def send(self) -> None:
        """Send until nothing waits.

        Raises:
            Exception: Whatever the client raises when the server cannot be reached; the events stay.
        """
        while lines := self.spool.pending(LINES_AT_ONCE):
            for batch in _batches(lines):
                self._send_batch(batch)

    def _send_batch(self, batch: list[Line]) -> None:
        self._client = self._client or connect(self.uri)
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
            self._mark_sent(batch)
        else:
            self._mark_sent(batch)
            self.spool.discard_files(line.event for line in batch)

    def _mark_sent(self, batch: list[Line]) -> None:
        self.spool.keep(replace(self.spool.state, sent=batch[-1].end))

    def _dispatch(self, batch: list[Line]) -> None:
        client, event = self._client, batch[0].event
        assert client is not None
        if event["kind"] == "start":
            start_run(client, self.spool, event, self.uri)
        elif event["kind"] == "metrics":
            log_metrics(client, self._run_id(), [line.event for line in batch])
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
            self._say(f"the tracking server refuses a {event['kind']} entry: {cut(str(error), 300)}")
        self.spool.keep(replace(self.spool.state, refused=refused + 1))
        with (self.spool.folder / "refused.jsonl").open("a") as stream:
            stream.write(json.dumps(event | {"cause": str(error)}) + "\n")


def _batches(lines: list[Line]) -> Iterator[list[Line]]:
    """Neighbouring metrics together, up to the size of a batch; every other event alone."""
    for kind, group in groupby(lines, key=lambda line: line.event["kind"]):
        batch: list[Line] = []
        size = 0
        for line in group:
            count = len(line.event["values"]) if kind == "metrics" else METRICS_AT_ONCE
            if batch and size + count > METRICS_AT_ONCE:
                yield batch
                batch, size = [], 0
            batch.append(line)
            size += count
        yield batch
