"""Reads: get, paginated list at one version, and watch.

Defines the format of continue tokens. All functions are synchronous, so a list and the start of its watch see the same state.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from multisched.cluster.api.forms import Form
from multisched.cluster.api.watch import Filter, Terms, WatchStream
from multisched.cluster.base import errors
from multisched.cluster.base.metadata import IdentityGenerator
from multisched.cluster.base.request import TRUE, Target
from multisched.cluster.base.resources import Resource
from multisched.cluster.base.selectors import field_test, label_test
from multisched.cluster.base.storage import Collection, Store, Stored
from multisched.model.wire import Response

WATCH_TIMEOUT_S = (1_800.0, 3_600.0)
"""A watch without timeoutSeconds ends at a random moment in this range, as with --min-request-timeout 1800."""

LIST_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)
JSON_HEADERS: Mapping[str, str] = {"content-type": "application/json", "cache-control": "no-cache, private"}


@dataclass(slots=True)
class Reads:
    """Answers get, list and watch from the store."""

    store: Store
    minting: IdentityGenerator

    def list(self, resource: Resource, target: Target, form: Form) -> Response:
        """Lists the objects selected by the target's namespace and selectors."""
        collection = self.store.collection(resource.storage_key)
        page = _page(resource, target)
        chosen = selection(resource, target)
        version, items = self._items(collection, page, target)
        return self._answer(page, chosen, form, version, items)

    def _items(self, collection: Collection, page: _Page, target: Target) -> tuple[int, Any]:
        current = self.store.version
        if page.token_version > 0:
            past = collection.items_at(page.token_version)
            if past is None:
                raise errors.expired(LIST_EXPIRED, _token(-1, page.start_key))
            return page.token_version, past
        if page.token_version < 0:
            return current, collection.items(target.namespace)
        if page.version > current:
            raise errors.version_too_large(page.version, current)
        if page.version and page.is_exact and page.version < current:
            past = collection.items_at(page.version)
            if past is None:
                raise errors.expired("The resourceVersion for the provided list is too old.")
            return page.version, past
        return current, collection.items(target.namespace)

    def _answer(self, page: _Page, chosen: Filter, form: Form, version: int, items: Any) -> Response:
        raws: list[bytes] = []
        if chosen.is_open and not page.start_key and not page.limit:
            raws = [stored.raw for _key, stored in items]
            return Response(200, form.many(raws, version, "", None), JSON_HEADERS)
        last_key, remaining = "", 0
        for key, stored in items:
            if key <= page.start_key or not chosen.matches(key, stored):
                continue
            if page.limit and len(raws) >= page.limit:
                remaining += 1
                if chosen.labels or chosen.fields:
                    break
                continue
            raws.append(stored.raw)
            last_key = key
        token = _token(version, last_key) if remaining else ""
        shown = None if not token or chosen.labels or chosen.fields else remaining
        return Response(200, form.many(raws, version, token, shown), JSON_HEADERS)

    def watch(self, resource: Resource, target: Target, form: Form) -> WatchStream:
        """Opens a watch that starts at the requested version."""
        collection = self.store.collection(resource.storage_key)
        chosen = selection(resource, target)
        params = target.params
        version = _version(params.get("resourceVersion", ""))
        initial = params.get("sendInitialEvents")
        _check_watch_params(resource, params, initial)
        encode, encoding = form.encoder()
        api_version = resource.api_version

        def bookmark(at: int, annotations: Mapping[str, str]) -> bytes:
            metadata: dict[str, Any] = {"resourceVersion": str(at)}
            if annotations:
                metadata["annotations"] = dict(annotations)
            return orjson.dumps({"kind": resource.kind, "apiVersion": api_version, "metadata": metadata})

        bookmarks = params.get("allowWatchBookmarks") in TRUE
        terms = Terms(self._timeout_s(params), bookmarks, encode, encoding, bookmark)
        starts_fresh = initial in TRUE or (initial is None and version == 0)
        if not starts_fresh and version:
            events = collection.events_since(version)
            if events is None:
                return self._too_old(collection, chosen, terms, version)
            stream = WatchStream(collection, chosen, terms, self._current, version)
            stream.start_after(events)
            return stream
        if version > self.store.version:
            raise errors.version_too_large(version, self.store.version)
        stream = WatchStream(collection, chosen, terms, self._current, self.store.version)
        if starts_fresh:
            ends_at = self.store.version if initial in TRUE and bookmarks else None
            stream.start_with(collection.items(target.namespace), ends_at)
        return stream

    def _current(self) -> int:
        return self.store.version

    def _timeout_s(self, params: Mapping[str, str]) -> float:
        asked = params.get("timeoutSeconds", "")
        if asked.isdigit() and int(asked) > 0:
            return float(asked)
        return self.minting.uniform(*WATCH_TIMEOUT_S)

    def _too_old(self, collection: Collection, chosen: Filter, terms: Terms, version: int) -> WatchStream:
        refusal = errors.expired(f"too old resource version: {version} ({collection.compacted})")
        stream = WatchStream(collection, chosen, terms, self._current, version)
        stream.fail(orjson.dumps(refusal.status))
        return stream


def selection(resource: Resource, target: Target) -> Filter:
    """Builds the filter of a target's namespace, name and selectors."""
    labels = target.params.get("labelSelector")
    fields = target.params.get("fieldSelector")
    return Filter(
        target.namespace if resource.namespaced else "",
        target.name,
        label_test(labels) if labels else None,
        field_test(fields, resource.selectable, resource.namespaced) if fields else None,
    )


def chosen_items(collection: Collection, chosen: Filter) -> list[tuple[str, Stored]]:
    """Returns the objects that a filter selects now."""
    return [(key, stored) for key, stored in collection.items(chosen.namespace) if chosen.matches(key, stored)]


@dataclass(frozen=True, slots=True)
class _Page:
    version: int = 0
    is_exact: bool = False
    limit: int = 0
    token_version: int = 0
    start_key: str = ""


def _page(resource: Resource, target: Target) -> _Page:
    params = target.params
    limit = int(params["limit"]) if params.get("limit", "").isdigit() else 0
    match, given = params.get("resourceVersionMatch", ""), params.get("resourceVersion", "")
    token = params.get("continue")
    causes = []
    if match and token:
        causes.append(
            errors.forbidden_value(
                "resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided"
            )
        )
    if match and not given:
        causes.append(
            errors.forbidden_value(
                "resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided"
            )
        )
    if match and match not in ("Exact", "NotOlderThan"):
        causes.append(errors.unsupported_value("resourceVersionMatch", match, ["Exact", "NotOlderThan", ""]))
    if match == "Exact" and given == "0":
        causes.append(
            errors.forbidden_value(
                "resourceVersionMatch", 'resourceVersionMatch "Exact" is forbidden for resourceVersion "0"'
            )
        )
    if causes:
        raise errors.invalid("meta.k8s.io", "ListOptions", "", causes)
    if token:
        if given not in ("", "0"):
            raise errors.bad_request("specifying resource version is not allowed when using continue")
        token_version, start_key = _read_token(token)
        return _Page(limit=limit, token_version=token_version, start_key=start_key)
    version = _version(given)
    is_exact = match == "Exact" or (not match and bool(limit) and version > 0)
    del resource
    return _Page(version, is_exact, limit)


def _version(text: str) -> int:
    if not text:
        return 0
    if not text.isdigit():
        raise errors.bad_request(f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax')
    return int(text)


def _check_watch_params(resource: Resource, params: Mapping[str, str], initial: str | None) -> None:
    del resource
    match = params.get("resourceVersionMatch", "")
    causes = []
    if initial is None and match:
        causes.append(
            errors.forbidden_value(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )
        )
    if initial is not None and match != "NotOlderThan":
        detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        causes.append(errors.forbidden_value("resourceVersionMatch", detail))
    if causes:
        raise errors.invalid("meta.k8s.io", "ListOptions", "", causes)


def _token(version: int, last_key: str) -> str:
    document = {"v": "meta.k8s.io/v1", "rv": version, "start": f"/{last_key}\x00"}
    return base64.urlsafe_b64encode(orjson.dumps(document)).decode().rstrip("=")


def _read_token(token: str) -> tuple[int, str]:
    try:
        document = orjson.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        version, start = int(document["rv"]), str(document["start"])
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise errors.bad_request("continue key is not valid: illegal base64 data or JSON") from None
    if not version or not start.startswith("/") or document.get("v") != "meta.k8s.io/v1":
        raise errors.bad_request("continue key is not valid")
    return version, start[1:].rstrip("\x00")
