"""CustomResourceDefinitions: kinds that users add while the server runs.

Owns the mapping from each definition to its kinds in the Catalog. A definition is established at once. Deleting a definition
deletes its objects and ends their watches.
"""

from __future__ import annotations

from typing import Any

from multisched.cluster.api.objects import Objects
from multisched.cluster.api.watch import WatchStream
from multisched.cluster.base import errors
from multisched.cluster.base.resources import SCALE, STATUS, Catalog, Document, Resource, selectable_fields
from multisched.cluster.base.storage import Event, Store

GROUP = "apiextensions.k8s.io"
STORAGE = "customresourcedefinitions.apiextensions.k8s.io"


class Definitions:
    """Validates CRDs, and updates the Catalog when they change."""

    def __init__(self, objects: Objects, catalog: Catalog, store: Store) -> None:
        self._objects = objects
        self._catalog = catalog
        self._store = store
        self._served: dict[str, list[Resource]] = {}
        objects.checks[STORAGE] = self._prepare
        objects.on_change[STORAGE] = self._follow

    def _prepare(self, new: Document, old: Document | None) -> None:
        """Validates a definition and sets the fields that the server owns."""
        spec, name = new.get("spec") or {}, new["metadata"]["name"]
        causes = _problems(spec, name)
        if old is not None and (
            old["spec"].get("scope") != spec.get("scope") or old["spec"]["group"] != spec.get("group")
        ):
            causes.append(errors.invalid_value("spec.scope", spec.get("scope"), "field is immutable"))
        if not causes and self._clashes(spec, name):
            causes.append(errors.invalid_value("spec.names.plural", spec["names"]["plural"], "is already in use"))
        if causes:
            raise errors.invalid(GROUP, "CustomResourceDefinition", name, causes)
        names = spec["names"]
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", names["kind"] + "List")
        spec.setdefault("conversion", {"strategy": "None"})
        stored = [version["name"] for version in spec["versions"] if version.get("storage")]
        kept = list(((old or {}).get("status") or {}).get("storedVersions") or ())
        new["status"] = {
            "conditions": self._conditions(old),
            "acceptedNames": names,
            "storedVersions": [*kept, *(version for version in stored if version not in kept)],
        }

    def _conditions(self, old: Document | None) -> list[Document]:
        known = ((old or {}).get("status") or {}).get("conditions")
        if known:
            return list(known)
        now = self._objects.minting.now()
        said = (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
        return [
            {"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message}
            for kind, reason, message in said
        ]

    def _clashes(self, spec: Document, name: str) -> bool:
        own = self._served.get(name, [])
        return any(
            entry.group == spec["group"] and entry.plural == spec["names"]["plural"] and entry not in own
            for entry in self._catalog
        )

    def _follow(self, event: Event) -> None:
        for resource in self._served.pop(event.key, []):
            self._catalog.remove(resource)
        if event.after is None:
            self._empty(event.key)
            return
        resources = list(_resources(event.after.document()["spec"]))
        self._served[event.key] = resources
        for resource in resources:
            self._catalog.add(resource)

    def _empty(self, storage: str) -> None:
        collection = self._store.collection(storage)
        for key, stored in list(collection.items()):
            collection.record(Event(self._store.next_version(), key, stored, None))
        for stream in tuple(collection.observers):
            if isinstance(stream, WatchStream):
                stream.close()
        self._store.drop(storage)


def _problems(spec: Document, name: str) -> list[dict[str, str]]:
    names, group = spec.get("names") or {}, spec.get("group") or ""
    causes = []
    if not group:
        causes.append(errors.required("spec.group"))
    causes += [errors.required(f"spec.names.{field}") for field in ("plural", "kind") if not names.get(field)]
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        causes.append(errors.unsupported_value("spec.scope", spec.get("scope") or "", ["Cluster", "Namespaced"]))
    versions = spec.get("versions") or []
    if sum(1 for version in versions if version.get("storage")) != 1:
        causes.append(
            errors.invalid_value(
                "spec.versions", len(versions), "must have exactly one version marked as storage version"
            )
        )
    causes += [
        errors.required(f"spec.versions[{place}].schema.openAPIV3Schema", "schemas are required")
        for place, version in enumerate(versions)
        if not (version.get("schema") or {}).get("openAPIV3Schema")
    ]
    if not causes and name != f"{names['plural']}.{group}":
        causes.append(errors.invalid_value("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    return causes


def _resources(spec: Document) -> list[Resource]:
    served = [version for version in spec["versions"] if version.get("served")]
    names = spec["names"]
    return [_resource(spec, names, version, has_siblings=len(served) > 1) for version in served]


def _resource(spec: Document, names: Document, version: Document, *, has_siblings: bool) -> Resource:
    below: Any = version.get("subresources") or {}
    subresources = [entry for name, entry in (("status", STATUS), ("scale", SCALE)) if below.get(name) is not None]
    schema = {**version["schema"], "scale": below.get("scale")}
    return Resource(
        spec["group"],
        version["name"],
        names["plural"],
        names["kind"],
        spec["scope"] == "Namespaced",
        names.get("singular") or "",
        tuple(names.get("shortNames") or ()),
        tuple(names.get("categories") or ()),
        subresources=tuple(subresources),
        has_generation=True,
        is_custom=True,
        has_siblings=has_siblings,
        schema=schema,
        columns=tuple(version.get("additionalPrinterColumns") or ()),
        **selectable_fields(*(field["jsonPath"].lstrip(".") for field in version.get("selectableFields") or ())),
    )
