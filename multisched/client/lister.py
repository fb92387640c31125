"""Consistent lists in pages, as raw JSON per object.

Stateless. All pages of one iteration come from one version of the store. Requests have no resourceVersion, so that they
are served from the quorum; client-go's own first list may be arbitrarily old. Raises instead of returning a partial
list. Used by reflectors and by the audit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from multisched.client.errors import error_for
from multisched.model.wire import UNREADABLE, Response, Transport

PAGE_ITEMS: Final = 1_000
LIST_TIMEOUT_S: Final = 60.0
"""For each page."""


class MalformedAnswerError(Exception):
    """A 200 whose body is not a list: truncated, garbage, or another kind of document."""


class TornListError(MalformedAnswerError):
    """Pages of one list come from different versions of the store, which together are no state that the store ever had."""


class _ListMetadata(msgspec.Struct, gc=False):
    version: str = msgspec.field(name="resourceVersion", default="")
    continue_token: str = msgspec.field(name="continue", default="")


class _ListBody(msgspec.Struct, gc=False):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


_list_decoder = msgspec.json.Decoder(_ListBody)


class Page(msgspec.Struct, frozen=True):
    """Some objects of a list. The raw values are views into one response: decode them soon, or they keep all of it in
    memory.

    Items of a list carry neither kind nor apiVersion.
    """

    items: list[msgspec.Raw]
    version: str


def with_query(path: str, **parameters: str) -> str:
    """Returns `path` with the non-empty parameters appended."""
    present = {name: value for name, value in parameters.items() if value}
    return f"{path}?{urlencode(present, quote_via=quote)}" if present else path


async def list_pages(
    transport: Transport,
    path: str,
    *,
    field_selector: str = "",
    label_selector: str = "",
    page_items: int = PAGE_ITEMS,
    timeout_s: float = LIST_TIMEOUT_S,
) -> AsyncGenerator[Page, None]:
    """Yields every page, and requests the next one before. `page_items=0` requests the whole list at once.

    Raises TransportError, MalformedAnswerError, TornListError or an ApiError. `Gone` means that the continue token
    expired between two pages. After `Gone` or TornListError everything yielded so far belongs to a list that cannot be
    completed.
    """

    def ask(token: str) -> asyncio.Future[Response]:
        limit = str(page_items or "")
        selectors = {"fieldSelector": field_selector, "labelSelector": label_selector}
        url = with_query(path, limit=limit, **selectors, **{"continue": token})
        return asyncio.ensure_future(transport.request("GET", url, timeout_s=timeout_s))

    asked = ask("")
    version = ""
    try:
        while True:
            body = _read(path, await asked)
            if body.metadata.version != (version or body.metadata.version):
                raise TornListError(f"the list of {path} has pages of versions {version} and {body.metadata.version}")
            version = body.metadata.version
            token = body.metadata.continue_token
            if token:  # before this page is yielded: the server prepares the next one meanwhile
                asked = ask(token)
            yield Page(body.items or [], version)
            if not token:
                return
    finally:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)  # its error is ignored


def _read(path: str, response: Response) -> _ListBody:
    if response.status != 200:
        raise error_for(response)
    try:
        body = _list_decoder.decode(response.body)
    except UNREADABLE as error:
        raise MalformedAnswerError(f"the list of {path} is not a list") from error
    if not body.metadata.version:
        raise MalformedAnswerError(f"the list of {path} has no resourceVersion")
    return body
