"""A page in headless Chromium, by its DevTools protocol: what a person sees of an HTML file or of MLflow's pages."""

import asyncio
import json
import re
import shutil
import subprocess
import time
from base64 import b64decode
from pathlib import Path
from typing import Any, Self

import aiohttp

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--window-size=1400,1000")
FRAMES = "--disable-features=IsolateSandboxedIframes,IsolateOrigins,site-per-process"  # so that `texts` sees inside frames


class Browser:
    """One page; every wait is bounded.

    Args:
        folder: for the browser's profile.
    """

    def __init__(self, folder: Path) -> None:
        command = [str(PROGRAM), *FLAGS, FRAMES, f"--user-data-dir={folder}", "about:blank"]
        self._log = (folder.parent / f"{folder.name}.log").open("w+")
        self._process = subprocess.Popen(command, stderr=self._log, stdout=subprocess.DEVNULL)
        self._loop = asyncio.new_event_loop()
        self._count = 0

    def __enter__(self) -> Self:
        port = self._port(30)
        self._session = self._loop.run_until_complete(self._open())
        pages = self._loop.run_until_complete(self._get(f"http://127.0.0.1:{port}/json"))
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        self._socket = self._loop.run_until_complete(self._session.ws_connect(address, max_msg_size=0))
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._session.close())
        self._loop.close()
        self._process.kill()
        self._process.wait(10)
        self._log.close()

    def open(self, address: str) -> None:
        """Go to an address, also from one that differs in its fragment alone."""
        self._call("Page.navigate", url="about:blank")
        self._call("Page.navigate", url=address)

    def value(self, expression: str) -> Any:
        """Value of a JavaScript expression."""
        return self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)["result"].get(
            "value"
        )

    def wait(self, expression: str, seconds: float = 30) -> Any:
        """Value of an expression as soon as it is true; AssertionError after some seconds."""
        end = time.monotonic() + seconds
        while not (value := self.value(expression)):
            assert time.monotonic() < end, f"{expression} is not true; the page says {self.value('document.body.innerText')}"
            time.sleep(0.1)
        return value

    def nodes(self) -> str:
        """Names and texts of all nodes, those of frames too."""
        return json.dumps(self._call("DOM.getDocument", depth=-1, pierce=True))

    def wait_for_nodes(self, pattern: str, seconds: float = 30) -> None:
        """Wait until the nodes match a regular expression; AssertionError after some seconds."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.nodes()):
            assert time.monotonic() < end, f"{pattern} is not in the page"
            time.sleep(0.2)

    def screenshot(self, path: Path) -> None:
        """Save what is seen as PNG."""
        path.write_bytes(b64decode(self._call("Page.captureScreenshot")["data"]))

    def _port(self, seconds: float) -> str:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := re.search(r"DevTools listening on ws://127\.0\.0\.1:(\d+)", Path(self._log.name).read_text()):
                return found[1]
            time.sleep(0.1)
        raise AssertionError(f"Chromium does not start: {Path(self._log.name).read_text()[-500:]}")

    async def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))

    async def _get(self, address: str) -> Any:
        async with self._session.get(address) as answer:
            return await answer.json()

    def _call(self, method: str, **parameters: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(self._answer(method, parameters), 30))

    async def _answer(self, method: str, parameters: dict[str, Any]) -> Any:
        self._count += 1
        await self._socket.send_json({"id": self._count, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json()
            if message.get("id") == self._count:
                assert "error" not in message, message
                return message["result"]
