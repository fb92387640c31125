"""Chromium over its debugging protocol (CDP): what the tests of the page need of a browser, and no more.

Debian's Chromium is started headless with a profile of its own, and asked over a WebSocket on loopback. `make page`
installs it.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp
import anyio
import orjson

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
START_S: Final = 120.0
CALL_S: Final = 120.0
WAIT_S: Final = 120.0
LOOK_S: Final = 0.05
"""Between two looks of `until`."""
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of one message: a screenshot of a long page."""
FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # CI runs as root in a container
    "--remote-debugging-port=0",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-proxy-server",
    "--ignore-certificate-errors",  # the server's own certificate, on loopback
    "--hide-scrollbars",
)
KEYS: Final = {
    "Tab": ("Tab", 9, ""),
    "Enter": ("Enter", 13, "\r"),
    "ArrowRight": ("ArrowRight", 39, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
}
"""Key -> code, Windows key code, text."""


def chromium() -> str:
    """Returns the path of the browser. Raises RuntimeError: the stage must fail if it cannot run."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise RuntimeError("there is no Chromium: `make page` installs Debian's, which needs root")
    return found


class Tab:
    """One page in the browser, and everything that went wrong in it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.problems: list[str] = []
        """Errors of scripts and of the console, refused resources included."""
        self.sent_bytes = 0
        """Bytes of responses that the network received."""
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command and returns its result. Raises RuntimeError."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        command = {"id": number, "method": method, "params": parameters}
        await self._socket.send_str(orjson.dumps(command).decode())
        try:
            async with asyncio.timeout(CALL_S):
                found = await answer
        except TimeoutError as error:
            raise RuntimeError(f"{method} was not answered within {CALL_S:g} s: {parameters!r:.500}") from error
        if "error" in found:
            raise RuntimeError(f"{method}: {found['error']}")
        result: dict[str, Any] = found["result"]
        return result

    async def listen(self) -> None:
        """Reads answers and events until the tab is closed."""
        async for message in self._socket:
            found = orjson.loads(message.data)
            if "id" in found:
                answer = self._answers.pop(found["id"])
                if not answer.done():  # its caller may have given up
                    answer.set_result(found)
            else:
                self._note(found["method"], found["params"])

    def _note(self, event: str, about: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(one.get("value", one.get("description"))) for one in about["args"]))
        elif event == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.problems.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")
        elif event == "Network.dataReceived":
            self.sent_bytes += about["dataLength"]

    # -- what a person does ----------------------------------------------------------------------------------------

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def size(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def press(self, key: str) -> None:
        code, number, text = KEYS[key]
        event = {"key": key, "code": code, "windowsVirtualKeyCode": number, "text": text}
        await self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **event)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    async def run(self, script: str) -> Any:
        """Returns the value of an expression, promises included. Raises RuntimeError with the script's error."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return found["result"].get("value")

    async def until(self, condition: str, within_s: float = WAIT_S) -> None:
        """Waits until an expression is true. Fails with what the page shows."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not await self.run(f"Boolean({condition})"):  # noqa: ASYNC110 -- another process changes it
                    await asyncio.sleep(LOOK_S)
                return
        shown = await self.run("location.hash + ': ' + document.body.innerText.slice(0, 2000)")
        raise AssertionError(f"not within {within_s} s: {condition}\n{shown}\n{self.problems}")

    async def text(self) -> str:
        """Returns what the page shows as text."""
        return str(await self.run("document.body.innerText"))

    async def picture(self, file: Path, *, whole: bool = False) -> None:
        """Writes a screenshot."""
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        await anyio.Path(file).write_bytes(base64.b64decode(found["data"]))


@asynccontextmanager
async def open_tab() -> AsyncIterator[Tab]:
    """Starts a browser with one empty tab; ends it with the block."""
    with tempfile.TemporaryDirectory(prefix="multisched-page-", ignore_cleanup_errors=True) as profile:
        flags = [*FLAGS, f"--user-data-dir={profile}", "about:blank"]
        null = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(chromium(), *flags, stdin=null, stdout=null, stderr=null)
        try:
            address = await _address(process, anyio.Path(profile) / "DevToolsActivePort")
            async with aiohttp.ClientSession() as session:
                async with session.get(f"{address}/json/list") as answer:
                    target = next(one for one in await answer.json() if one["type"] == "page")
                url = target["webSocketDebuggerUrl"]
                async with session.ws_connect(url, max_msg_size=MESSAGE_BYTES_MAX) as socket:
                    tab = Tab(socket)
                    listening = asyncio.create_task(tab.listen())
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await tab.call(f"{domain}.enable")
                    yield tab
                    listening.cancel()
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _address(process: asyncio.subprocess.Process, file: anyio.Path) -> str:
    """Returns the base URL of the debugging port, which the browser writes to its profile."""
    async with asyncio.timeout(START_S):
        while not await file.exists() or not (text := await file.read_text()).strip():
            if process.returncode is not None:
                raise RuntimeError(f"Chromium ended with code {process.returncode}")
            await asyncio.sleep(LOOK_S)
    return f"http://127.0.0.1:{text.split()[0]}"
