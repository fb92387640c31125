"""Server-side apply: field ownership, merging, conflicts.

Defines the format of managedFields. It is simpler than upstream in three points. Only objects that were applied at least
once have managedFields; fields set before are owned by `before-first-apply`, as in upstream. Ownership is recorded in one API version
per kind. Writes of pods/binding, pods/eviction and namespaces/finalize are not tracked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from multisched.cluster.base import errors
from multisched.cluster.base.resources import Document, Resource
from multisched.cluster.patching.merge_keys import ATOMIC, MERGE, SET, ListRule, list_rule

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
MANAGERS_MAX = 10
"""Maximum number of Update entries per object; if there are more, the oldest is dropped."""

Path = tuple[str, ...]
Rules = Callable[[str, str], ListRule]
_ITEM = object()
_KEY_DEFAULTS: Mapping[str, str] = {"protocol": "TCP"}
_UNOWNED = frozenset(
    {
        "name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "selfLink",
        "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields",
    }
)  # fmt: skip


def rules_of(resource: Resource) -> Rules:
    """Returns the merge rules for the lists of a kind; a custom kind's rules are in its schema."""
    if not resource.is_custom:
        return list_rule
    schema: Mapping[str, Any] = (resource.schema or {}).get("openAPIV3Schema") or {}

    def rule(path: str, key: str) -> ListRule:
        parts = path.split(".")[1:]
        if parts[:1] == ["metadata"]:
            return list_rule(path, key)
        own: Mapping[str, Any] = schema
        for part in (*parts, key):
            if own.get("type") == "array":
                own = own.get("items") or {}
            own = (own.get("properties") or {}).get(part) or own.get("additionalProperties") or {}
            if not isinstance(own, dict):
                return ATOMIC
        kind = own.get("x-kubernetes-list-type")
        if kind == "map":
            keys = tuple(own.get("x-kubernetes-list-map-keys") or ())
            return ListRule(MERGE, keys, MERGE, keys)
        return SET if kind == "set" else ATOMIC

    return rule


# -- field sets --------------------------------------------------------------------------------------------------


def _item_step(entry: Mapping[str, Any], keys: Iterable[str]) -> str:
    chosen = {key: entry.get(key, _KEY_DEFAULTS.get(key)) for key in sorted(keys)}
    chosen = {key: value for key, value in chosen.items() if value is not None}
    return "k:" + orjson.dumps(chosen).decode()


def leaves(resource: Resource, document: Document) -> dict[Path, Any]:
    """Returns every owned path of a document with its value; entries of keyed lists also have a path of their own."""
    found: dict[Path, Any] = {}
    rules = rules_of(resource)
    for key, value in document.items():
        if key in ("kind", "apiVersion"):
            continue
        if key == "metadata":
            value = {name: entry for name, entry in value.items() if name not in _UNOWNED}
            if not value:
                continue
        _collect(rules, value, (f"f:{key}",), f"{resource.kind}.{key}", found)
    return found


def _collect(rules: Rules, value: Any, path: Path, place: str, found: dict[Path, Any]) -> None:
    if isinstance(value, dict) and value:
        for key, entry in value.items():
            if isinstance(entry, list):
                _collect_list(rules, entry, (*path, f"f:{key}"), place, key, found)
            else:
                _collect(rules, entry, (*path, f"f:{key}"), f"{place}.{key}", found)
    elif isinstance(value, list):
        parent, _, key = place.rpartition(".")
        _collect_list(rules, value, path, parent, key, found)
    else:
        found[path] = value


def _collect_list(rules: Rules, value: list[Any], path: Path, place: str, key: str, found: dict[Path, Any]) -> None:
    rule = rules(place, key)
    if rule.apply_keys and all(isinstance(entry, dict) for entry in value):
        for entry in value:
            below = (*path, _item_step(entry, rule.apply_keys))
            found[below] = _ITEM
            _collect(rules, entry, below, f"{place}.{key}", found)
    elif rule.apply_strategy == MERGE and not rule.apply_keys:
        for entry in value:
            found[*path, "v:" + orjson.dumps(entry).decode()] = _ITEM
    else:
        found[path] = value


def fields_v1(paths: Iterable[Path]) -> Document:
    """Converts a set of paths to the nested FieldsV1 form."""
    root: Document = {}
    for path in sorted(paths):
        at = root
        for step in path:
            at = at.setdefault(step, {})
        if path[-1].startswith("k:"):
            at["."] = {}
    return root


def paths_of(fields: Mapping[str, Any], prefix: Path = ()) -> set[Path]:
    """Converts the nested FieldsV1 form to a set of paths."""
    found: set[Path] = set()
    if prefix and (not fields or "." in fields):
        found.add(prefix)
    for step, below in fields.items():
        if step != ".":
            found |= paths_of(below, (*prefix, step))
    return found


def shown(path: Path) -> str:
    """Formats a path, such as `.spec.containers[name="c"].image`."""
    text = ""
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            text += (
                "["
                + ",".join(f"{key}={orjson.dumps(value).decode()}" for key, value in orjson.loads(rest).items())
                + "]"
            )
        else:
            text += f"[={rest}]"
    return text


# -- merging -----------------------------------------------------------------------------------------------------


def _merge(rules: Rules, live: Any, applied: Any, place: str) -> Any:
    if not isinstance(applied, dict) or not isinstance(live, dict):
        return applied
    merged = dict(live)
    for key, value in applied.items():
        if isinstance(value, list):
            merged[key] = _merge_list(rules, live.get(key), value, place, key)
        else:
            merged[key] = _merge(rules, live.get(key), value, f"{place}.{key}")
    return merged


def _merge_list(rules: Rules, live: Any, applied: list[Any], place: str, key: str) -> list[Any]:
    rule = rules(place, key)
    if not isinstance(live, list) or rule.apply_strategy != MERGE:
        return applied
    if not rule.apply_keys:
        return [*applied, *(entry for entry in live if entry not in applied)]
    by_key = {_item_step(entry, rule.apply_keys): entry for entry in live if isinstance(entry, dict)}
    merged = []
    for entry in applied:
        old = by_key.pop(_item_step(entry, rule.apply_keys), None)
        merged.append(entry if old is None else _merge(rules, old, entry, f"{place}.{key}"))
    return [*merged, *by_key.values()]


def _remove(document: Any, path: Path, rules: Rules, place: str) -> None:
    """Removes one owned path from a document, and its parents that become empty."""
    step, rest = path[0], path[1:]
    kind, _, name = step.partition(":")
    if kind != "f" or not isinstance(document, dict) or name not in document:
        return
    value = document[name]
    if not rest:
        del document[name]
        return
    if not isinstance(value, list):
        _remove(value, rest, rules, f"{place}.{name}")
        if value == {}:
            del document[name]
        return
    rule, item = rules(place, name), rest[0]
    if item.startswith("v:"):
        wanted = orjson.loads(item[2:])
        _set_or_drop(document, name, [entry for entry in value if entry != wanted])
    elif len(rest) == 1:
        _set_or_drop(document, name, [entry for entry in value if _item_step(entry, rule.apply_keys) != item])
    else:
        for entry in value:
            if _item_step(entry, rule.apply_keys) == item:
                _remove(entry, rest[1:], rules, f"{place}.{name}")


def _set_or_drop(document: Document, name: str, left: list[Any]) -> None:
    """Sets a list, or deletes the field if the list is empty."""
    if left:
        document[name] = left
    else:
        del document[name]


# -- apply -------------------------------------------------------------------------------------------------------


def apply(
    resource: Resource,
    live: Document | None,
    applied: Document,
    manager: str,
    now: str,
    *,
    force: bool,
    subresource: str = "",
) -> Document:
    """Returns the object to store, with managedFields. Raises 409 for fields that other managers own with other values."""
    wanted = leaves(resource, applied)
    entries = _entries(resource, live, now)
    mine = next((entry for entry in entries if _is(entry, manager, "Apply", subresource)), None)
    previous = paths_of(mine["fieldsV1"]) if mine else set()
    others = [entry for entry in entries if entry is not mine]
    if live is None:
        merged: Document = dict(applied)
    else:
        present = leaves(resource, live)
        contested = {
            path for path, value in wanted.items() if value is not _ITEM and path in present and present[path] != value
        }
        # A field that no longer exists but has another owner conflicts as well.
        contested |= {path for path, value in wanted.items() if value is not _ITEM and path not in present}
        _settle(others, contested, force=force)
        rules = rules_of(resource)
        merged = _merge(rules, live, applied, resource.kind)
        merged = orjson.loads(orjson.dumps(merged))
        owned_elsewhere: set[Path] = (
            set().union(*(paths_of(entry["fieldsV1"]) for entry in others)) if others else set()
        )
        # Short paths first, because removing a list entry removes all paths below it.
        for path in sorted(previous - set(wanted) - owned_elsewhere, key=len):
            _remove(merged, path, rules, resource.kind)
    entry: Document = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": resource.api_version,
        "time": now,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields_v1(wanted),
    }
    if subresource:
        entry["subresource"] = subresource
    if mine is not None and mine["fieldsV1"] == entry["fieldsV1"]:
        entry["time"] = mine["time"]
    kept = [other for other in others if other["fieldsV1"]]
    merged["metadata"] = {**(merged.get("metadata") or {}), "managedFields": [entry, *kept]}
    return merged


def _is(entry: Mapping[str, Any], manager: str, operation: str, subresource: str) -> bool:
    return (
        entry.get("manager") == manager
        and entry.get("operation") == operation
        and entry.get("subresource", "") == subresource
    )


def _entries(resource: Resource, live: Document | None, now: str) -> list[Document]:
    if live is None:
        return []
    known = live["metadata"].get("managedFields")
    if known:
        return [dict(entry) for entry in known]
    owned = {path for path in leaves(resource, live) if path[0] != "f:status"}
    applied = owned & leaves(resource, _last_applied(live)).keys()
    # Fields from kubectl's client-side apply become owned by its server-side apply, so that it can migrate without conflicts.
    before = [{**_update_entry(resource, "kubectl", applied, now), "operation": "Apply"}] if applied else []
    return [*before, _update_entry(resource, "before-first-apply", owned - applied, now)]


def _last_applied(live: Document) -> Document:
    """Returns the configuration of the last client-side apply, from its annotation."""
    text = (live["metadata"].get("annotations") or {}).get(LAST_APPLIED)
    try:
        applied = orjson.loads(text) if text else None
    except orjson.JSONDecodeError:
        applied = None
    return applied if isinstance(applied, dict) and isinstance(applied.get("metadata", {}), dict) else {}


def _update_entry(resource: Resource, manager: str, paths: Iterable[Path], now: str, subresource: str = "") -> Document:
    entry: Document = {
        "manager": manager,
        "operation": "Update",
        "apiVersion": resource.api_version,
        "time": now,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields_v1(paths),
    }
    return {**entry, "subresource": subresource} if subresource else entry


def _settle(others: list[Document], contested: set[Path], *, force: bool) -> None:
    conflicts: list[tuple[Document, Path]] = []
    for entry in others:
        owned = paths_of(entry["fieldsV1"])
        clash = owned & contested
        if not clash:
            continue
        if force:
            entry["fieldsV1"] = fields_v1(owned - clash)
        else:
            conflicts += [(entry, path) for path in sorted(clash)]
    if conflicts:
        raise _conflict(conflicts)


def _conflict(conflicts: list[tuple[Document, Path]]) -> errors.ApiError:
    causes = []
    by_owner: dict[str, list[str]] = {}
    for entry, path in conflicts:
        owner = f'"{entry["manager"]}"'
        if entry.get("subresource"):
            owner += f' with subresource "{entry["subresource"]}"'
        if entry["operation"] == "Update":
            owner += f" using {entry['apiVersion']}"
        causes.append(errors.cause("FieldManagerConflict", shown(path), f"conflict with {owner}"))
        by_owner.setdefault(owner, []).append(shown(path))
    said = []
    for owner, paths in by_owner.items():
        if len(paths) == 1:
            said.append(f"conflict with {owner}: {paths[0]}")
        else:
            said.append(f"conflicts with {owner}:\n" + "\n".join(f"- {path}" for path in paths))
    count = len(conflicts)
    message = f"Apply failed with {count} conflict{'' if count == 1 else 's'}: " + "\n".join(said)
    return errors.ApiError(409, "Conflict", message, {"causes": causes})


def track(resource: Resource, old: Document, new: Document, manager: str, now: str, subresource: str = "") -> None:
    """Updates managedFields after a plain write of an applied object: the manager owns each field that it changed."""
    entries = [dict(entry) for entry in old["metadata"].get("managedFields") or ()]
    before, after = leaves(resource, old), leaves(resource, new)
    changed = {
        path for path, value in after.items() if path not in before or (value is not _ITEM and before[path] != value)
    }
    removed = set(before) - set(after)
    if not changed and not removed:
        return
    for entry in entries:
        owned = paths_of(entry["fieldsV1"])
        if owned & (changed | removed):
            entry["fieldsV1"] = fields_v1(owned - removed - {path for path in changed if after[path] is not _ITEM})
    mine = next((entry for entry in entries if _is(entry, manager, "Update", subresource)), None)
    owned = changed | (paths_of(mine["fieldsV1"]) if mine else set())
    kept = [entry for entry in entries if entry is not mine and entry["fieldsV1"]]
    if owned:
        kept.append(_update_entry(resource, manager, owned, now, subresource))
    updates = [entry for entry in kept if entry["operation"] == "Update"]
    if len(updates) > MANAGERS_MAX:
        oldest = updates[0]
        kept = [entry for entry in kept if entry is not oldest]
    new["metadata"]["managedFields"] = kept
