"""What remains of a run's log when it ends, and sending it later."""

import os
import shlex
import sys
import time
from pathlib import Path

from es_medical.tracking.server import import_mlflow, resolve_uri, shown
from es_medical.tracking.spool import Spool, SpoolBusyError, abandoned, read_state, spools
from es_medical.tracking.upload import Uploader


def say(message: str) -> None:
    """A message for the user, on the standard error stream."""
    print(f"es_medical: {message}", file=sys.stderr, flush=True)


def now() -> int:
    """Milliseconds since 1970, as MLflow counts."""
    return time.time_ns() // 1_000_000


def close_spool(spool: Spool, uri: str) -> bool:
    """Remove the spool if the server has everything; otherwise keep it and say how to send the rest.

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
    """Say which logs of dead processes wait beside the spool `mine`, and how to send them.

    Args:
        folder: Holds the spools of several runs.
        mine: The spool that is in use.
        uri: Tracking server for a log that has not yet been sent to any.
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
    """The shell command that sends `spool`, without a password."""
    return f"python -m es_medical.tracking send {shlex.quote(str(spool))} --uri {shlex.quote(shown(uri))}"


def send_all(folder: Path, uri: str | None) -> bool:
    """Send every spool at or right inside `folder`; a run whose process died without an end becomes FAILED.

    Args:
        folder: A spool, or the folder that holds the spools of several runs.
        uri: Tracking server; None as in `resolve_uri`.

    Returns:
        Whether everything is sent.

    Raises:
        FileNotFoundError: There is no spool.
        ValueError: The URI is a file store.
    """
    target, found = resolve_uri(uri), spools(folder)
    if not found:
        raise FileNotFoundError(f"no unsent log in {folder} (looked for {folder}/state.json and {folder}/*/state.json)")
    import_mlflow()
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # nobody waits for this process
    sent = [_send_one(path, target) for path in found]  # all are tried, whichever fails
    return all(sent)


def _send_one(folder: Path, uri: str) -> bool:
    try:
        spool = Spool(folder)
    except SpoolBusyError as error:
        say(str(error))
        return False
    if (spool.last() or {}).get("kind") != "finish":
        spool.append({"kind": "finish", "time": now(), "status": "FAILED"})
    try:
        waiting = spool.count()
        Uploader(spool, uri, say).send()
        say(f"{folder.name}: {waiting} log entries sent to {shown(uri)}, run {spool.state.run_id}")
    except Exception as error:  # the server's or the network's; told, and the next spool is tried
        say(f"{folder.name}: {error}")
    return close_spool(spool, uri)


def main(arguments: list[str] | None = None) -> int:
    """`python -m es_medical.tracking send SPOOL [--uri URI]`; exit status 1 if something remains unsent."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m es_medical.tracking")
    send = parser.add_subparsers(dest="command", required=True).add_parser("send", help="send what a run left unsent")
    send.add_argument("spool", type=Path, help="a run's spool, or the folder that holds several")
    send.add_argument("--uri", help="tracking server (default: MLFLOW_TRACKING_URI, else sqlite:///mlflow.db)")
    given = parser.parse_args(arguments)
    try:
        return 0 if send_all(given.spool, given.uri) else 1
    except (FileNotFoundError, ValueError) as error:
        say(str(error))
        return 1
