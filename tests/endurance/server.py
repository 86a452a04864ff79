"""MLflow's own server in a forked child, with trouble in front of it."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple


class Trouble(NamedTuple):
    """What is wrong with a server: its kind, the request at which it begins, and a share of requests."""

    kind: str
    first: int = 0
    share: float = 1.0


def with_trouble(app: Callable[..., Any], trouble: Trouble) -> Callable[..., Any]:
    """A WSGI application that answers like `app`, or badly."""
    count, kinds = [0], {"slow", "dead", "500", "web page", "cut off", "restarting"}
    assert trouble.kind in kinds

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        count[0] += 1
        bad = count[0] > trouble.first and (trouble.kind == "dead" or count[0] % 3 == 0)
        if not bad:
            return app(environ, start)
        if trouble.kind == "dead":
            os._exit(0)
        if trouble.kind == "restarting":
            count[0] = -1_000_000  # once
            environ["werkzeug.server.shutdown_now"] = True
            os._exit(75)
        if trouble.kind == "slow":
            time.sleep(1.5 + 5 * trouble.share)  # sometimes longer than the client waits
            return app(environ, start)
        if trouble.kind == "cut off":  # after the server has done it
            list(app(environ, lambda *_: None))
            environ["werkzeug.socket"].close()
            return []
        page = trouble.kind == "web page"
        start(
            "200 OK" if page else "500 Internal Server Error", [("Content-Type", "text/html" if page else "application/json")]
        )
        return [b"<html>Please log in</html>" if page else b'{"error_code": "INTERNAL_ERROR", "message": "trouble"}']

    return answer


@contextmanager
def server(folder: Path, trouble: Trouble | None) -> Iterator[str]:
    """Serve the database of a folder, its artifacts in `mlartifacts`; yields the address."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    keeper = os.fork()
    if keeper == 0:
        os.setpgid(0, 0)
        code, now = 75, trouble
        while code == 75:  # restarted
            serving = os.fork()
            if serving == 0:
                _serve(folder, port, now)
            code, now = os.waitstatus_to_exitcode(os.waitpid(serving, 0)[1]), None
            time.sleep(1.0)
        os._exit(0)
    try:
        _wait(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        with_group = os.getpgid(keeper)
        assert with_group != os.getpgid(0)
        os.killpg(with_group, signal.SIGKILL)
        os.waitpid(keeper, 0)


def _serve(folder: Path, port: int, trouble: Trouble | None) -> None:
    log = os.open(folder / "server.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ |= {
        "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{folder / 'mlflow.db'}",
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": (folder / "mlartifacts").as_uri(),
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
    }
    from mlflow.server import app
    from werkzeug.serving import make_server

    application = app if trouble is None else with_trouble(app, trouble)
    make_server("127.0.0.1", port, application, threaded=True).serve_forever()
    os._exit(0)


def _wait(port: int) -> None:
    for _ in range(600):
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError("the server does not start")
