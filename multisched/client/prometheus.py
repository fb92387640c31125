"""Range queries to a Prometheus-compatible server; implements `framework.measures.Meter`.

Owns the connections to one server. No request asks for more than `points_max` steps, and each ends within its timeout.
Requests follow no redirects; responses are not decompressed or read beyond their size limit. A worker thread decodes
samples, one response at a time. NaN, infinite and negative samples are gaps, and are counted.

Differences between servers: Thanos marks a partial response in `warnings`, VictoriaMetrics by `isPartial`; both are
used, with a warning. VictoriaMetrics aligns a range to multiples of its step, so callers begin there. Limits on what
one query may load differ in name: a range refused for one is split into shorter ones.
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import aiohttp
import anyio
import anyio.to_thread
import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.client.backoff import Backoff
from multisched.client.errors import in_words
from multisched.client.line_stream import ERROR_BODY_BYTES_MAX, read_capped
from multisched.client.tls_trust import context_of
from multisched.client.transport import USER_AGENT
from multisched.framework.measures import Grid, MeterError, MeterSettings, Piece, RangeReport, Take, shown_query
from multisched.model.wire import UNREADABLE

RETRY_BASE_S: Final = 0.5
RETRY_CAP_S: Final = 30.0
SHRINK: Final = 8
"""A range whose response is too large is requested in pieces of 1/SHRINK of its length. Four such steps get from 4,032
steps to one.
"""
GOOD_BYTES: Final = 8 * 1024 * 1024
"""Desired size of a response: decoding its outer structure blocks the loop for 3 ms per megabyte."""
ERROR_CHARS_MAX: Final = 512
LOCATION_CHARS_SHOWN: Final = 200
TOKEN_BYTES_MAX: Final = 64 * 1024
WARNINGS_KEPT: Final = 10
BATCH_BYTES: Final = 128 * 1024
"""Part of a response that is decoded at a time: takes some milliseconds."""
RESTS: Final = 2.0
"""Pause after each batch, as a multiple of its decoding time, so that the loop and its cycles get most of the CPU."""
OFF_GRID_PART: Final = 0.001
"""Maximum distance of a sample from its step, as a part of a step."""

_PATH: Final = "/api/v1/query_range"
_TOO_MUCH: Final = re.compile(r"too many|exceed|more than|limit|too (?:large|long)", re.IGNORECASE)
_RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})


class PrometheusMeter:
    """Requests to one server. Its connections close when no range is being read, so callers need not close it."""

    def __init__(self, settings: MeterSettings, rng: random.Random, rests: float = RESTS) -> None:
        """Reads the certificates. Raises MeterError if they cannot be used. `rests`: 0 if no cycles share the interpreter."""
        self.settings = settings
        self._rests = rests
        self._rng = rng
        self._url = settings.url.rstrip("/") + _PATH
        self._session: aiohttp.ClientSession | None = None
        self._readers = 0
        self._places = asyncio.Semaphore(settings.concurrency)
        self._decoding = asyncio.Lock()
        _tls_context(settings)

    async def ranges(self, query: str, grid: Grid, take: Take) -> RangeReport:
        """See `Meter`."""
        self._readers += 1
        try:
            return await self._ranges(query, grid, take)
        finally:
            self._readers -= 1
            if not self._readers:
                with anyio.CancelScope(shield=True):
                    await self._close()

    async def _ranges(self, query: str, grid: Grid, take: Take) -> RangeReport:
        report = RangeReport()
        first, width = 0, min(grid.steps, self.settings.points_max)
        while first < grid.steps:
            part = _Part(query, grid, first, min(width, grid.steps - first))
            try:
                async with self._places:
                    read_bytes = await self._read(part, take, report)
            except _TooMuchError as error:
                if part.steps == 1:
                    raise MeterError(
                        self._named(query, f"{error}, for a single step; aggregate in the query")
                    ) from error
                width = max(1, part.steps // SHRINK)
                continue
            first += part.steps
            if read_bytes > GOOD_BYTES:
                width = max(1, part.steps * GOOD_BYTES // read_bytes)
        return report

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # -- one piece ---------------------------------------------------------------------------------------------------

    async def _read(self, part: _Part, take: Take, report: RangeReport) -> int:
        """Reads one piece; returns the size of the response."""
        backoff = Backoff(self._rng, base_s=RETRY_BASE_S, cap_s=RETRY_CAP_S)
        for attempt in range(1, self.settings.tries + 1):
            report.requests += 1
            try:
                body = await self._exchange(part)
                break
            except _RetryError as error:
                if attempt == self.settings.tries:
                    raise MeterError(self._named(part.query, f"{error} ({attempt} tries)")) from error
                await asyncio.sleep(backoff.next_s(min(error.retry_after_s, RETRY_CAP_S)))
            except _RefusedError as error:
                raise MeterError(self._named(part.query, str(error))) from error
        try:
            async with self._decoding:
                await self._deliver(body, part, take, report)
        except _RefusedError as error:
            raise MeterError(self._named(part.query, str(error))) from error
        return len(body)

    async def _deliver(self, body: bytes, part: _Part, take: Take, report: RangeReport) -> None:
        """Decodes in a worker thread, in batches with pauses: while it runs, it takes half of the interpreter's time."""
        loop = asyncio.get_running_loop()
        answer = await anyio.to_thread.run_sync(_decoded, body, report)
        found = _Found()
        for batch in _batches(answer):
            began_s = loop.time()
            await anyio.to_thread.run_sync(found.add, batch, part, report)
            await asyncio.sleep(self._rests * (loop.time() - began_s))
        await anyio.to_thread.run_sync(lambda: take(found.piece(report)))

    async def _exchange(self, part: _Part) -> bytes:
        """Returns the body of a 200."""
        timeout_s = self.settings.timeout_s
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._opened().post(
                    self._url,
                    data={**self.settings.parameters, **part.form()},
                    headers=self._headers(),
                    allow_redirects=False,
                    server_hostname=self._server_name(),
                ) as response,
            ):
                if response.status == 200 and response.headers.get("Content-Encoding", "identity") == "identity":
                    return await self._capped(response)
                raise await self._refusal(response)
        except TimeoutError as error:
            raise _RetryError(f"no answer within {timeout_s:g} s") from error
        except aiohttp.ClientConnectorError as error:
            if isinstance(error, aiohttp.ClientSSLError):
                await self._close()  # the next session reads a renewed certificate authority
            raise _RetryError(f"cannot be reached: {in_words(error)}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _RetryError(f"the answer was lost: {in_words(error)}") from error

    async def _capped(self, response: aiohttp.ClientResponse) -> bytes:
        """Reads the body; raises _TooMuchError at the size limit, before the rest is read."""
        cap = self.settings.answer_bytes_max
        try:
            return await read_capped(response, cap)
        except aiohttp.ClientPayloadError as error:
            response.close()
            if "exceeds" in str(error):
                raise _TooMuchError(f"an answer of over {cap} bytes (answerBytesMax)") from error
            raise

    async def _refusal(self, response: aiohttp.ClientResponse) -> Exception:
        """Returns the exception for a status other than 200, with the server's message if there is one."""
        status = response.status
        if 300 <= status < 400:
            return _RefusedError(
                f"redirects to {response.headers.get('Location', '')[:LOCATION_CHARS_SHOWN]}; write that url"
            )
        if status == 200:
            return _RefusedError(
                f"the response is compressed ({response.headers['Content-Encoding']}) although the request asked for none"
            )
        kind, text = _error_of(await read_capped(response, ERROR_BODY_BYTES_MAX))
        words = f"HTTP {status}: {kind + ': ' if kind else ''}{text}"
        if kind == "timeout" or (status in (400, 413, 422) and _is_too_much(text)):
            return _TooMuchError(words)
        if status in _RETRIED:
            return _RetryError(words, _retry_after_s(response))
        if status in (401, 403):
            return _RefusedError(f"{words}; check tokenFile and headers")
        if status == 404:
            return _RefusedError(f"{words}; url must be the prefix before /api/v1")
        return _RefusedError(words)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": USER_AGENT}
        headers |= self.settings.headers
        if self.settings.token_file:
            headers["Authorization"] = f"Bearer {self._token()}"
        return headers

    def _token(self) -> str:
        name = self.settings.token_file
        try:
            with Path(name).open("rb") as file:
                text = file.read(TOKEN_BYTES_MAX).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise _RefusedError(f"tokenFile {name} cannot be read: {in_words(error)}") from error
        if not text or not text.isprintable():
            raise _RefusedError(f"tokenFile {name} must hold a token in one line")
        return text

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self.settings.concurrency, ssl=_tls_context(self.settings)),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session

    def _server_name(self) -> str | None:
        is_tls = self.settings.url.startswith("https:")
        return self.settings.trust.server_name or None if is_tls else None

    def _named(self, query: str, text: str) -> str:
        """Prefixes the server and the query to the text, and shortens the query where a server's message repeats it."""
        shown = shown_query(query)
        for repeated in (query, query.replace('"', '\\"')):
            text = text.replace(repeated, shown) if shown != query else text
        return f"prometheus {self.settings.url}: {text} (query: {shown})"


class _Part(msgspec.Struct, frozen=True):
    """`steps` steps of a grid from step `first` on, read by one request."""

    query: str
    grid: Grid
    first: int
    steps: int

    @property
    def start_s(self) -> float:
        return self.grid.start_s + self.first * self.grid.step_s

    def form(self) -> dict[str, str]:
        end_s = self.start_s + (self.steps - 1) * self.grid.step_s
        return {
            "query": self.query,
            "start": f"{self.start_s:.3f}",
            "end": f"{end_s:.3f}",
            "step": f"{self.grid.step_s:g}",
        }


class _RetryError(Exception):
    """The same request may succeed later."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class _RefusedError(Exception):
    """A retry would fail again."""


class _TooMuchError(Exception):
    """A shorter range may succeed."""


# -- answers ---------------------------------------------------------------------------------------------------------


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: msgspec.Raw = msgspec.Raw(b"[]")
    histograms: msgspec.Raw = msgspec.Raw(b"")


class _Data(msgspec.Struct):
    resultType: str = ""
    result: list[msgspec.Raw] = []


class _Answer(msgspec.Struct):
    status: str = ""
    data: _Data = msgspec.field(default_factory=_Data)
    errorType: str = ""
    error: str = ""
    warnings: list[str] | None = None
    isPartial: bool = False


_ANSWER: Final = msgspec.json.Decoder(_Answer)
_SERIES: Final = msgspec.json.Decoder(_Series)
_VALUES: Final = msgspec.json.Decoder(list[tuple[float, float]], strict=False)
"""Not strict, because values are strings; it parses NaN and Inf, but not +Inf."""


def _decoded(body: bytes, report: RangeReport) -> list[msgspec.Raw]:
    """Returns the series of a response, undecoded. Raises _RefusedError if it is not a range."""
    try:
        answer = _ANSWER.decode(body)
    except UNREADABLE as error:
        raise _RefusedError(f"the response is not a Prometheus range: {error}; check url") from error
    kind = answer.data.resultType
    if answer.status != "success" or kind != "matrix":
        raise _RefusedError(
            f"the response is {answer.status!r} with {kind!r} instead of a range: {answer.error[:ERROR_CHARS_MAX]}"
        )
    for text in (*(answer.warnings or ()), *(("the answer is partial",) if answer.isPartial else ())):
        _warn(report, text[:ERROR_CHARS_MAX])
    return answer.data.result


def _batches(result: list[msgspec.Raw]) -> Iterator[list[msgspec.Raw]]:
    """Yields consecutive series, about BATCH_BYTES at a time."""
    batch: list[msgspec.Raw] = []
    size = 0
    for raw in result:
        batch.append(raw)
        size += len(bytes(raw))
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Found:
    """The decoded series of one response."""

    def __init__(self) -> None:
        self._labels: list[dict[str, str]] = []
        self._lengths: list[NDArray[np.int64]] = []
        self._steps: list[NDArray[np.int64]] = []
        self._values: list[NDArray[np.float64]] = []

    def add(self, batch: list[msgspec.Raw], part: _Part, report: RangeReport) -> None:
        """Decodes some series. Raises _RefusedError for invalid ones."""
        pairs: list[list[tuple[float, float]]] = []
        try:
            for raw in batch:
                series = _SERIES.decode(raw)
                if bytes(series.histograms):
                    _warn(report, "native histograms are left out; take their sum or quantile in the query")
                self._labels.append(series.metric)
                pairs.append(_VALUES.decode(bytes(series.values).replace(b'"+Inf"', b'"Inf"')))
        except UNREADABLE as error:
            raise _RefusedError(f"the response is not a Prometheus range: {error}; check url") from error
        lengths = np.array([len(one) for one in pairs], np.int64)
        flat = np.fromiter(chain.from_iterable(chain.from_iterable(pairs)), np.float64, 2 * int(lengths.sum()))
        moments, values = flat[::2], flat[1::2]
        places = (moments - part.start_s) / part.grid.step_s
        steps = np.rint(places)
        is_on = (np.abs(places - steps) <= OFF_GRID_PART) & (steps >= 0) & (steps < part.steps)
        is_on &= _is_rising(moments, lengths)
        is_finite = np.isfinite(values)
        report.dropped.off_grid += int(np.count_nonzero(~is_on))
        report.dropped.nan += int(np.count_nonzero(is_on & ~is_finite))
        report.dropped.negative += int(np.count_nonzero(is_on & is_finite & (values < 0)))
        good = is_on & is_finite & (values >= 0)
        rows = np.repeat(np.arange(len(pairs)), lengths)
        self._lengths.append(np.bincount(rows[good], minlength=len(pairs)))
        self._steps.append(steps[good].astype(np.int64) + part.first)
        self._values.append(values[good])

    def piece(self, report: RangeReport) -> Piece:
        """Returns everything decoded so far."""
        lengths = np.concatenate(self._lengths) if self._lengths else np.zeros(0, np.int64)
        steps = np.concatenate(self._steps) if self._steps else np.zeros(0, np.int64)
        values = np.concatenate(self._values) if self._values else np.zeros(0, np.float64)
        report.series += len(self._labels)
        report.samples += len(steps)
        return Piece(tuple(self._labels), np.cumsum(lengths, dtype=np.int64), steps, values)


def _is_rising(moments: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns a mask bool[samples]: True for each sample that is later than all before it in its series."""
    found = np.ones(len(moments), bool)
    begins = np.cumsum(lengths) - lengths
    found[1:] = np.diff(moments) > 0
    found[begins[lengths > 0]] = True
    if not found.all():
        for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True):
            own = moments[begin : begin + length]
            found[begin + 1 : begin + length] = own[1:] > np.maximum.accumulate(own)[:-1]
    return found


def _warn(report: RangeReport, text: str) -> None:
    if text in report.warnings or len(report.warnings) < WARNINGS_KEPT:
        report.warnings[text] = report.warnings.get(text, 0) + 1


def _error_of(body: bytes) -> tuple[str, str]:
    """Returns (errorType, error) of an error response; a proxy's page is cut."""
    try:
        answer = _ANSWER.decode(body)
    except UNREADABLE:
        answer = _Answer()
    text = answer.error or body[:ERROR_CHARS_MAX].decode(errors="replace")
    return answer.errorType, " ".join(text[:ERROR_CHARS_MAX].split())


def _is_too_much(text: str) -> bool:
    """Returns whether the error is about a limit. A query that does not parse may name a limit, too, but is not retried."""
    return _TOO_MUCH.search(text) is not None and "parse error" not in text


def _retry_after_s(response: aiohttp.ClientResponse) -> float:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isdecimal() and len(text) < 6 else 0.0


def _tls_context(settings: MeterSettings) -> ssl.SSLContext | bool:
    try:
        return context_of(settings.url, settings.trust)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise MeterError(f"prometheus {settings.url}: tls cannot be used: {in_words(error)}") from error
