"""The open pages of a bench, in a process of their own, so that what they cost themselves is not counted as the server's.

    python -m tests.perf.page_readers URL PAGES

`Readers` starts it and tells it what to do, one line each way: a command, and its result as JSON. Commands:
`rest S`: only the streams, which are open all the time. `read N PATH`: one page reads a document N times. `crowd N PATH ...`:
all pages read at the same moment, each one of the paths in turn, N times, POLL_S apart. `work S`: as `crowd`, until S seconds are over.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import orjson

POLL_S: Final = 3.0
"""The least time between two readings of the views that are read most often."""
VIEWS: Final = ("pending", "nodes?limit=500", "decisions?limit=100", "nodes/node-00001")
OPENED: Final = "opened"


class Pages:
    """Streams that stay open, and requests."""

    def __init__(self, url: str, session: aiohttp.ClientSession, pages: int) -> None:
        self._url = url
        self._session = session
        self._pages = pages
        self._received = 0
        """Bytes of streams."""

    async def follow(self) -> None:
        """Reads one stream, and opens it again when it ends."""
        while True:
            async with self._session.get(f"{self._url}/api/v1/overview/stream") as answer:
                async for part in answer.content.iter_any():
                    self._received += len(part)

    async def rest(self, seconds: str) -> Any:
        self._received = 0
        await asyncio.sleep(float(seconds))
        return {"bytes_per_page_and_second": round(self._received / self._pages / float(seconds))}

    async def read(self, times: str, path: str) -> Any:
        sizes = [await self._size(path) for _ in range(int(times))]
        return {"bytes": max(sizes)}

    async def crowd(self, times: str, *paths: str) -> Any:
        slowest_s = 0.0
        for _ in range(int(times)):
            began_s = time.monotonic()
            await asyncio.gather(*(self._size(paths[number % len(paths)]) for number in range(self._pages)))
            slowest_s = max(slowest_s, time.monotonic() - began_s)
            await asyncio.sleep(POLL_S)
        return {"slowest_ms": round(1000 * slowest_s, 1)}

    async def work(self, seconds: str) -> Any:
        ends_s, rounds = time.monotonic() + float(seconds), 0
        while time.monotonic() < ends_s:
            await self.crowd("1", *VIEWS)
            rounds += 1
        return {"rounds": rounds}

    async def _size(self, path: str) -> int:
        async with self._session.get(f"{self._url}/api/v1/{path}") as answer:
            body = await answer.read()
            if answer.status not in (200, 404):  # a bench may have no node of that name
                raise RuntimeError(f"{path}: {answer.status} {body[:200]!r}")
            return len(body)


async def main(url: str, pages: int) -> None:
    """Obeys commands until the input ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    connector = aiohttp.TCPConnector(limit=3 * pages)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        opened = Pages(url, session, pages)
        streams = [asyncio.create_task(opened.follow()) for _ in range(pages)]
        await asyncio.sleep(POLL_S)
        print(OPENED, flush=True)
        while line := (await reader.readline()).decode().split():
            result = await getattr(opened, line[0])(*line[1:])
            print(orjson.dumps(result).decode(), flush=True)
        for stream in streams:
            stream.cancel()


class Readers:
    """The process, from outside."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def tell(self, *command: str | float) -> dict[str, Any]:
        """Returns the result of a command. Raises RuntimeError if the process has failed."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{' '.join(map(str, command))}\n".encode())
        found: dict[str, Any] = orjson.loads(await self.line())
        return found

    async def line(self) -> bytes:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the readers have failed; they say why on standard error")
        return line


@asynccontextmanager
async def open_pages(url: str, pages: int) -> AsyncIterator[Readers]:
    """Opens so many pages; closes them with the block."""
    pipe = asyncio.subprocess.PIPE
    command: Sequence[str] = (sys.executable, "-m", "tests.perf.page_readers", url, str(pages))
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        readers = Readers(process)
        assert (await readers.line()).decode().strip() == OPENED
        yield readers
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
