"""Patches: JSON merge patch (RFC 7386), JSON patch (RFC 6902) and strategic merge patch.

Functions return a new document and do not change their arguments. They raise ApiError if a patch cannot be applied. The keys of
strategic merges are in `merge_keys`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from multisched.cluster.base import errors
from multisched.cluster.patching.merge_keys import MERGE, REPLACE, child, list_rule

JSON_PATCH_OPERATIONS_MAX = 10_000
"""Maximum number of operations in a JSON patch, the same as in upstream."""


def merge(document: Any, patch: Any) -> Any:
    """Applies a JSON merge patch (RFC 7386): null removes a field, objects are merged, other values replace."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


# -- JSON patch --------------------------------------------------------------------------------------------------


def json_patch(document: Any, operations: Any) -> Any:
    """Applies a JSON patch (RFC 6902). As in upstream, raises 422 for a failed `test` or a missing path."""
    if not isinstance(operations, list):
        raise errors.bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    if len(operations) > JSON_PATCH_OPERATIONS_MAX:
        raise errors.ApiError(
            413,
            "RequestEntityTooLarge",
            f"The allowed maximum operations in a JSON patch is {JSON_PATCH_OPERATIONS_MAX}, got {len(operations)}",
        )
    for operation in operations:
        document = _apply_operation(document, operation)
    return document


def _unprocessable(message: str) -> errors.ApiError:
    return errors.ApiError(
        422, "Invalid", f"the server rejected our request due to an error in our request: {message}", {}
    )


def _apply_operation(document: Any, operation: Any) -> Any:
    if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
        raise errors.bad_request("a JSON patch operation needs op and path")
    name, path = operation.get("op"), _pointer(operation["path"])
    if name in ("add", "replace", "test") and "value" not in operation:
        raise errors.bad_request(f"a JSON patch operation {name} needs a value")
    if name == "add":
        return _put(document, path, operation["value"], must_exist=False)
    if name == "replace":
        return _put(document, path, operation["value"], must_exist=True)
    if name == "remove":
        return _without(document, path)
    if name == "test":
        if _read(document, path, missing=None) != operation["value"]:
            raise _unprocessable(f"testing value {operation['path']} failed: test failed")
        return document
    if name in ("move", "copy"):
        source = _pointer(str(operation.get("from", "")))
        value = _read(document, source)
        if name == "move":
            document = _without(document, source)
        return _put(document, path, value, must_exist=False)
    raise errors.bad_request(f"unexpected kind of JSON patch operation: {name}")


def _pointer(text: str) -> list[str]:
    if text == "":
        return []
    if not text.startswith("/"):
        raise errors.bad_request(f"a JSON pointer must start with a slash: {text}")
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


_RAISE: Any = object()


def _read(document: Any, path: Sequence[str], missing: Any = _RAISE) -> Any:
    for part in path:
        if isinstance(document, dict) and part in document:
            document = document[part]
        elif isinstance(document, list) and part.isdigit() and int(part) < len(document):
            document = document[int(part)]
        elif missing is _RAISE:
            raise _unprocessable(f"missing path {'/'.join(path)}")
        else:
            return missing
    return document


def _put(document: Any, path: Sequence[str], value: Any, *, must_exist: bool) -> Any:
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(document, dict):
        if (rest or must_exist) and head not in document:
            raise _unprocessable(
                f"{'replace' if must_exist else 'add'} operation does not apply: doc is missing path: {head}"
            )
        return {**document, head: _put(document.get(head), rest, value, must_exist=must_exist)}
    if isinstance(document, list):
        place = len(document) if head == "-" and not rest else int(head) if head.isdigit() else -1
        limit = len(document) if rest or must_exist else len(document) + 1
        if not 0 <= place < limit:
            raise _unprocessable(f"operation does not apply: index out of bounds: {head}")
        if rest or must_exist:
            return [
                *document[:place],
                _put(document[place], rest, value, must_exist=must_exist),
                *document[place + 1 :],
            ]
        return [*document[:place], value, *document[place:]]
    raise _unprocessable(f"operation does not apply: doc is missing path: {head}")


def _without(document: Any, path: Sequence[str]) -> Any:
    if not path:
        return None
    head, rest = path[0], path[1:]
    if isinstance(document, dict) and head in document:
        if rest:
            return {**document, head: _without(document[head], rest)}
        return {key: value for key, value in document.items() if key != head}
    if isinstance(document, list) and head.isdigit() and int(head) < len(document):
        place = int(head)
        middle = [_without(document[place], rest)] if rest else []
        return [*document[:place], *middle, *document[place + 1 :]]
    raise _unprocessable(f"remove operation does not apply: doc is missing path: {head}: missing value")


# -- strategic merge patch ---------------------------------------------------------------------------------------

_DELETE_FROM = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"
_PATCH = "$patch"
_RETAIN = "$retainKeys"


def strategic(kind: str, document: Any, patch: Any) -> Any:
    """Applies a strategic merge patch to an object of a built-in kind."""
    return _merge_maps(document if isinstance(document, dict) else {}, patch, kind)


def _merge_maps(original: Mapping[str, Any], patch: Any, path: str) -> Any:
    if not isinstance(patch, dict):
        return patch
    directive = patch.get(_PATCH)
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != _PATCH}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise errors.bad_request(f"unrecognized $patch value: {directive}")
    merged = dict(original)
    if _RETAIN in patch:
        kept = set(patch[_RETAIN])
        merged = {key: value for key, value in merged.items() if key in kept}
    for key, value in patch.items():
        if key in (_PATCH, _RETAIN) or key.startswith(_ORDER):
            continue
        if key.startswith(_DELETE_FROM):
            name = key.removeprefix(_DELETE_FROM)
            if isinstance(merged.get(name), list):
                merged[name] = [entry for entry in merged[name] if entry not in value]
            continue
        _merge_entry(merged, key, value, patch, path)
    _order_untouched(merged, patch, path)
    return merged


def _merge_entry(merged: dict[str, Any], key: str, value: Any, patch: Mapping[str, Any], path: str) -> None:
    if value is None:
        merged.pop(key, None)
    elif isinstance(value, dict):
        original = merged.get(key)
        merged[key] = _merge_maps(original if isinstance(original, dict) else {}, value, child(path, key))
    elif isinstance(value, list):
        original = merged.get(key)
        merged[key] = _merge_lists(
            original if isinstance(original, list) else [], value, patch.get(_ORDER + key), path, key
        )
    else:
        merged[key] = value


def _merge_lists(original: list[Any], patch: list[Any], order: Any, path: str, key: str) -> list[Any]:
    rule = list_rule(path, key)
    if rule.strategy == REPLACE:
        return [entry for entry in patch if not (isinstance(entry, dict) and set(entry) == {_PATCH})]
    if rule.strategy == MERGE and not rule.keys:
        merged = [*original, *(entry for entry in patch if entry not in original)]
        return _ordered(merged, order if isinstance(order, list) else patch, original, lambda entry: entry)
    return _merge_keyed(original, patch, order, rule.keys[0], child(path, key))


def _merge_keyed(original: list[Any], patch: list[Any], order: Any, merge_key: str, path: str) -> list[Any]:
    if any(isinstance(entry, dict) and entry.get(_PATCH) == "replace" for entry in patch):
        return [entry for entry in patch if not (isinstance(entry, dict) and _PATCH in entry)]
    merged = [entry for entry in original if isinstance(entry, dict)]
    for entry in patch:
        if not isinstance(entry, dict):
            raise errors.bad_request(f"the entries of a list merged by {merge_key} must be objects")
        if entry.get(merge_key) is None:
            raise errors.bad_request(f"map: {entry} does not contain declared merge key: {merge_key}")
        place = next((at for at, old in enumerate(merged) if old.get(merge_key) == entry[merge_key]), None)
        if entry.get(_PATCH) == "delete":
            merged = [old for old in merged if old.get(merge_key) != entry[merge_key]]
        elif place is None:
            merged.append(_merge_maps({}, entry, path))
        else:
            merged[place] = _merge_maps(merged[place], entry, path)
    named = order if isinstance(order, list) else patch
    keys = [item.get(merge_key) for item in named if isinstance(item, dict)]
    return _ordered(merged, keys, original, lambda entry: entry.get(merge_key))


def _order_untouched(merged: dict[str, Any], patch: Mapping[str, Any], path: str) -> None:
    """Applies `$setElementOrder` directives of lists that the patch does not change."""
    for key, order in patch.items():
        if not key.startswith(_ORDER):
            continue
        name = key.removeprefix(_ORDER)
        current = merged.get(name)
        if name in patch or not isinstance(current, list) or not isinstance(order, list):
            continue
        rule = list_rule(path, name)
        if rule.keys:
            merge_key = rule.keys[0]
            wanted = [item.get(merge_key) for item in order if isinstance(item, dict)]
            merged[name] = _ordered(current, wanted, current, lambda entry, merge_key=merge_key: entry.get(merge_key))
        elif rule.strategy == MERGE:
            merged[name] = _ordered(current, order, current, lambda entry: entry)


def _ordered(entries: list[Any], order: list[Any], original: list[Any], key_of: Any) -> list[Any]:
    """Orders merged entries as in upstream. Source: strategicpatch.normalizeElementOrder.

    Entries named in `order` follow it. Other entries keep their original order, and each precedes the first named entry that
    originally followed it.
    """
    rank = {_hashable(key): place for place, key in enumerate(order)}
    stood = {_hashable(key_of(entry)): place for place, entry in enumerate(original)}

    def key(entry: Any) -> Any:
        return _hashable(key_of(entry))

    named = sorted((entry for entry in entries if key(entry) in rank), key=lambda entry: rank[key(entry)])
    own = sorted(
        (entry for entry in entries if key(entry) not in rank), key=lambda entry: stood.get(key(entry), len(stood))
    )
    merged: list[Any] = []
    while named and own:
        left, right = stood.get(key(own[0])), stood.get(key(named[0]))
        goes_first = left is not None and right is not None and left < right
        merged.append((own if goes_first else named).pop(0))
    return [*merged, *named, *own]


def _hashable(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)
