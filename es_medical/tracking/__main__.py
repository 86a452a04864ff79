"""`python -m es_medical.tracking send SPOOL --uri URI`: send what remained unsent because the server was down."""

import argparse
import os
import sys
from pathlib import Path

from es_medical.tracking.server import import_mlflow, resolve_uri, shown
from es_medical.tracking.spool import Spool, SpoolBusyError, now, spools
from es_medical.tracking.upload import Uploader, close_spool, say


def send_all(folder: Path, uri: str | None) -> bool:
    """Send every spool at or directly inside `folder`; a run whose process died before its end becomes FAILED.

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
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # seconds: no training waits for this process
    sent = [_send_one(path, target) for path in found]  # try all, even if one fails
    return all(sent)


def _send_one(folder: Path, uri: str) -> bool:
    try:
        spool = Spool(folder)
    except (SpoolBusyError, ValueError) as error:
        say(str(error))
        return False
    if spool.last() is None:  # the process died before its first entry
        spool.remove()
        return True
    last = spool.last("start", "finish")  # the machine's load may be read once more after the end
    if last is None or last["kind"] != "finish":
        spool.append({"kind": "finish", "time": now(), "status": "FAILED"})
    try:
        waiting = spool.count()
        Uploader(spool, uri).send()
        say(f"{folder.name}: {waiting} log entries sent to {shown(uri)}, run {spool.state.run_id}")
    except Exception as error:  # of the server or the network: report it and try the next spool
        say(f"{folder.name}: {error}")
    return close_spool(spool, uri)


def main(arguments: list[str] | None = None) -> int:
    """Run `python -m es_medical.tracking send SPOOL [--uri URI]`; return exit status 1 if something remains unsent."""
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


if __name__ == "__main__":
    sys.exit(main())
