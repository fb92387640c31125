"""Writes: create, replace and delete of one object, with all checks.

Turns a decoded document into a stored object: identity, defaults, admission, validation, preconditions, generation,
deletion with grace period and finalizers. Called by the verbs and subresources, always synchronously.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from multisched.cluster.admission import storage_rules, validation
from multisched.cluster.admission.admission import Admission
from multisched.cluster.admission.defaults import DEFAULTS
from multisched.cluster.api import schemas
from multisched.cluster.base import errors
from multisched.cluster.base.metadata import IdentityGenerator, encode, key_of, store_form
from multisched.cluster.base.resources import Document, Resource
from multisched.cluster.base.storage import Collection, Event, Store, Stored
from multisched.cluster.patching import apply
from multisched.model.api_time import timestamp

KEEPS_STATUS_ON_CREATE = frozenset({"nodes", "persistentvolumes", "events", "endpoints"})
FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Options of a delete request."""

    grace_s: int | None = None
    uid: str = ""
    version: str = ""
    propagation: str = ""


@dataclass(slots=True)
class Objects:
    """Writes objects. `on_change`: storage key -> function called after each stored change of that kind."""

    store: Store
    minting: IdentityGenerator
    admission: Admission
    on_change: dict[str, Callable[[Event], None]] = field(default_factory=dict)
    checks: dict[str, Callable[[Document, Document | None], None]] = field(default_factory=dict)
    """Storage key -> additional check, called with the new and the old document before a write."""

    # -- reading -------------------------------------------------------------------------------------------------

    def stored(self, resource: Resource, namespace: str, name: str) -> Stored:
        """Returns the stored object. Raises 404 if there is none."""
        found = self.store.collection(resource.storage_key).objects.get(key_of(resource, namespace, name))
        if found is None:
            raise errors.not_found(resource.refusal_group, resource.plural, name)
        return found

    # -- create --------------------------------------------------------------------------------------------------

    def create(self, resource: Resource, document: Document, namespace: str, *, is_dry_run: bool = False) -> bytes:
        """Stores a new object; returns its bytes."""
        metadata = self._new_metadata(resource, document, namespace)
        document["metadata"] = metadata
        storage = resource.storage_key
        defaulting = DEFAULTS.get(storage)
        if defaulting is not None:
            defaulting(document)
        if resource.has_status and storage not in KEEPS_STATUS_ON_CREATE:
            document.pop("status", None)
            if not resource.is_custom:
                document["status"] = _initial_status(resource)
        self.admission.admit_create(resource, document, namespace, metadata["creationTimestamp"])
        causes = validation.create(resource, document)
        if resource.is_custom:
            causes += schemas.admit((resource.schema or {}).get("openAPIV3Schema"), document)
        if causes:
            raise errors.invalid(resource.refusal_group, resource.kind, metadata["name"], causes)
        check = self.checks.get(storage)
        if check is not None:
            check(document, None)
        collection = self.store.collection(storage)
        key = key_of(resource, namespace, metadata["name"])
        if key in collection.objects:
            raise errors.already_exists(resource.refusal_group, resource.plural, metadata["name"])
        if is_dry_run:
            return _without_version(resource, document)
        version = self.store.next_version()
        stored = store_form(resource, document, version, self.minting)
        self._record(resource, collection, Event(version, key, None, stored))
        return stored.raw

    def _new_metadata(self, resource: Resource, document: Document, namespace: str) -> Document:
        given = document.get("metadata", {})
        if not isinstance(given, dict):
            raise errors.bad_request("metadata must be an object")
        if given.get("namespace", namespace) not in ("", namespace):
            raise errors.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        if given.get("resourceVersion"):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        metadata: Document = dict(given)
        if resource.namespaced:
            metadata["namespace"] = namespace
        else:
            metadata.pop("namespace", None)
        prefix = metadata.get("generateName")
        if not metadata.get("name"):
            if not prefix:
                raise errors.invalid(
                    resource.refusal_group,
                    resource.kind,
                    "",
                    [errors.required("metadata.name", "name or generateName is required")],
                )
            metadata["name"] = prefix[: 63 - 5] + self.minting.suffix()
        metadata["uid"] = self.minting.uid()
        metadata["creationTimestamp"] = self.minting.now()
        for dropped in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"):
            metadata.pop(dropped, None)
        if resource.has_generation:
            metadata["generation"] = 1
        return metadata

    # -- replace -------------------------------------------------------------------------------------------------

    def replace(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        document: Document,
        *,
        subresource: str = "",
        is_dry_run: bool = False,
        manager: str = "",
        tracked_as: str = "",
    ) -> bytes:
        """Stores a new version of an object (for PUT, or a patch result); returns its bytes."""
        stored = self.stored(resource, namespace, name)
        old = stored.document()
        metadata = document.get("metadata") or {}
        self._check_identity(resource, stored, namespace, name, metadata)
        new = self._merge_parts(resource, old, document, subresource)
        new["metadata"] = _kept_metadata(old["metadata"], _settable_metadata(resource, old, metadata, subresource))
        if not subresource:
            defaulting = DEFAULTS.get(resource.storage_key)
            if defaulting is not None:
                defaulting(new)
            self.admission.admit_update(resource, new)
        fields = old["metadata"].get("managedFields")
        if manager and fields and new["metadata"].get("managedFields") == fields:
            apply.track(resource, old, new, manager, self.minting.now(), tracked_as or subresource)
        return self.write(resource, stored, old, new, subresource=subresource, is_dry_run=is_dry_run)

    def _check_identity(
        self, resource: Resource, stored: Stored, namespace: str, name: str, metadata: Mapping[str, Any]
    ) -> None:
        if metadata.get("name", name) != name:
            raise errors.bad_request(
                f"the name of the object ({metadata.get('name')}) does not match the name on the URL ({name})"
            )
        if resource.namespaced and metadata.get("namespace", namespace) not in ("", namespace):
            raise errors.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        uid = metadata.get("uid")
        if uid and uid != stored.uid:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {stored.uid}"
            raise errors.conflict(resource.refusal_group, resource.plural, name, why)
        version = metadata.get("resourceVersion")
        if not version and (resource.is_custom or resource.storage_key in validation.NEEDS_VERSION):
            cause = errors.cause(
                "FieldValueInvalid", "metadata.resourceVersion", "Invalid value: 0: must be specified for an update"
            )
            raise errors.invalid(resource.refusal_group, resource.kind, name, [cause])
        if version and version not in ("0", str(stored.version)):
            if not str(version).isdigit():
                raise errors.invalid(
                    resource.refusal_group,
                    resource.kind,
                    name,
                    [errors.invalid_value("metadata.resourceVersion", version, "must be specified for an update")],
                )
            raise errors.conflict(resource.refusal_group, resource.plural, name, errors.MODIFIED)

    def _merge_parts(self, resource: Resource, old: Document, given: Document, subresource: str) -> Document:
        """Returns the old document with the part that the path addresses replaced by the client's."""
        if subresource in ("status", "binding"):  # resourceclaims/binding also writes the status
            new = dict(old)
            new["status"] = given.get("status") or {}
            if resource.is_custom and given.get("status") is None:
                del new["status"]
            annotations = (given.get("metadata") or {}).get("annotations")
            if not resource.is_custom and annotations != old["metadata"].get("annotations"):
                new["metadata"] = {**old["metadata"], "annotations": annotations or {}}
            if resource.storage_key == "persistentvolumes":
                storage_rules.note_phase(new, old, self.minting.now())
            return {key: value for key, value in new.items() if key not in ("kind", "apiVersion")}
        if subresource == "resize":
            return {**old, "spec": _resized(old.get("spec") or {}, given.get("spec") or {})}
        if subresource == "ephemeralcontainers":
            added = (given.get("spec") or {}).get("ephemeralContainers") or []
            return {**old, "spec": {**(old.get("spec") or {}), "ephemeralContainers": added}}
        new = {key: value for key, value in given.items() if key not in ("kind", "apiVersion")}
        if resource.has_status and resource.storage_key != "events":
            if "status" in old:
                new["status"] = old["status"]
            else:
                new.pop("status", None)
        return new

    def write(
        self,
        resource: Resource,
        stored: Stored,
        old: Document,
        new: Document,
        *,
        subresource: str = "",
        is_dry_run: bool = False,
    ) -> bytes:
        """Validates a document, and stores it if it has changed; returns the bytes of the object."""
        metadata = new["metadata"]
        name = metadata["name"]
        causes = validation.update(resource, new, old, subresource)
        if resource.is_custom:
            causes += schemas.admit((resource.schema or {}).get("openAPIV3Schema"), new)
        if causes:
            raise errors.invalid(resource.refusal_group, resource.kind, name, causes)
        check = self.checks.get(resource.storage_key)
        if check is not None and not subresource:
            check(new, old)
        if resource.has_generation and subresource != "status" and _wants_other(resource, new, old):
            metadata["generation"] = int(old["metadata"].get("generation") or 0) + 1
        if _same(new, old):
            return stored.raw
        if is_dry_run:
            return encode(resource, new, stored.version)
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and not _waits_for_grace(resource, new):
            return self._finish(resource, stored, new)
        return self.put(resource, stored, new).raw

    def put(self, resource: Resource, stored: Stored, new: Document) -> Stored:
        """Stores a document as the next version of an object, without checks."""
        version = self.store.next_version()
        form = store_form(resource, new, version, self.minting)
        metadata = new["metadata"]
        key = key_of(resource, metadata.get("namespace", ""), metadata["name"])
        self._record(resource, self.store.collection(resource.storage_key), Event(version, key, stored, form))
        return form

    # -- delete --------------------------------------------------------------------------------------------------

    def delete(
        self, resource: Resource, namespace: str, name: str, options: DeleteOptions, *, is_dry_run: bool = False
    ) -> tuple[bytes, bool]:
        """Removes the object, or sets its deletionTimestamp. Returns its last encoding, and whether it was removed."""
        stored = self.stored(resource, namespace, name)
        self._check_delete(resource, stored, namespace, name, options)
        document = stored.document()
        metadata = document["metadata"]
        is_namespace = resource.storage_key == "namespaces"
        finalizers = _finalizers_after(metadata.get("finalizers") or [], options.propagation)
        grace_s = _grace_s(resource, document, options)
        was_deleting = "deletionTimestamp" in metadata
        if is_dry_run:
            return stored.raw, not finalizers and not grace_s
        if was_deleting:
            if finalizers != (metadata.get("finalizers") or []):
                metadata["finalizers"] = finalizers
            if grace_s >= int(metadata.get("deletionGracePeriodSeconds") or 0) and grace_s > 0:
                return stored.raw, False
        must_wait = bool(finalizers) or grace_s > 0 or is_namespace
        if not must_wait and resource.storage_key != "pods":
            return self._remove(resource, stored, document), True
        if must_wait and was_deleting and grace_s == int(metadata.get("deletionGracePeriodSeconds") or 0):
            return stored.raw, False
        self._mark_deleting(resource, document, finalizers, grace_s, is_first=not was_deleting)
        marked = self.put(resource, stored, document)
        if must_wait:
            return marked.raw, False
        return self._remove(resource, marked, document), True

    def _check_delete(
        self, resource: Resource, stored: Stored, namespace: str, name: str, options: DeleteOptions
    ) -> None:
        if options.uid and options.uid != stored.uid:
            key = key_of(resource, namespace, name)
            raise errors.uid_conflict(resource.refusal_group, resource.plural, key, name, options.uid, stored.uid)
        if options.version and options.version != str(stored.version):
            why = (
                f"Precondition failed: ResourceVersion in precondition: {options.version}, "
                f"ResourceVersion in object meta: {stored.version}"
            )
            raise errors.conflict(resource.refusal_group, resource.plural, name, why)

    def _mark_deleting(
        self, resource: Resource, document: Document, finalizers: list[str], grace_s: int, *, is_first: bool
    ) -> None:
        metadata = document["metadata"]
        metadata["finalizers"] = finalizers
        metadata["deletionTimestamp"] = timestamp(self.minting.clock.now() + timedelta(seconds=grace_s))
        metadata["deletionGracePeriodSeconds"] = grace_s
        if metadata.get("generation") and is_first:
            metadata["generation"] = int(metadata["generation"]) + 1
        if resource.storage_key == "namespaces":
            document["status"] = {**(document.get("status") or {}), "phase": "Terminating"}

    def _finish(self, resource: Resource, stored: Stored, new: Document) -> bytes:
        """Removes a deleting object whose last finalizer was removed."""
        form = self.put(resource, stored, new)
        return self._remove(resource, form, new)

    def _remove(self, resource: Resource, stored: Stored, document: Document) -> bytes:
        metadata = document["metadata"]
        version = self.store.next_version()
        key = key_of(resource, metadata.get("namespace", ""), metadata["name"])
        self._record(resource, self.store.collection(resource.storage_key), Event(version, key, stored, None))
        return stored.at_version(version)

    def _record(self, resource: Resource, collection: Collection, event: Event) -> None:
        collection.record(event)
        hook = self.on_change.get(resource.storage_key)
        if hook is not None:
            hook(event)


def _resized(old: Mapping[str, Any], given: Mapping[str, Any]) -> Document:
    """Returns the old spec with the containers' resources of the given spec: `pods/resize` may change nothing else."""
    resources = {entry.get("name"): entry.get("resources") for entry in given.get("containers") or ()}
    containers = [
        {**entry, "resources": resources.get(entry["name"]) or entry.get("resources") or {}}
        for entry in old.get("containers") or ()
    ]
    return {**old, "containers": containers}


def _initial_status(resource: Resource) -> Document:
    if resource.storage_key == "persistentvolumeclaims":
        return {"phase": "Pending"}
    if resource.storage_key == "services":
        return {"loadBalancer": {}}
    if resource.storage_key == "jobs.batch":
        return {}
    if resource.storage_key in ("replicasets.apps", "replicationcontrollers"):
        return {"replicas": 0}
    return {}


def _kept_metadata(old: Mapping[str, Any], given: Mapping[str, Any]) -> Document:
    """Returns the metadata fields that clients may set from `given`, the others from `old`."""
    kept: Document = {
        key: given.get(key) for key in ("labels", "annotations", "ownerReferences", "finalizers", "managedFields")
    }
    for key in (
        "name",
        "generateName",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ):
        if key in old:
            kept[key] = old[key]
    if "managedFields" not in given and old.get("managedFields"):
        kept["managedFields"] = old["managedFields"]
    if kept.get("managedFields") == [{}]:
        kept["managedFields"] = None
    return kept


def _settable_metadata(
    resource: Resource, old: Document, given: Mapping[str, Any], subresource: str
) -> Mapping[str, Any]:
    """Returns the metadata that a client may set. A status write of a custom object changes none except managedFields.

    Source: apiextensions-apiserver 1.36, pkg/registry/customresource/status_strategy.go, PrepareForUpdate.
    """
    if not resource.is_custom or subresource != "status":
        return given
    managed = {"managedFields": given["managedFields"]} if "managedFields" in given else {}
    return {**old["metadata"], **managed}


def _wants_other(resource: Resource, new: Document, old: Document) -> bool:
    """Reports whether the change increments metadata.generation.

    A change of the spec does. So does a change of a Deployment's annotations, and of the status of a custom kind without a status
    subresource.
    """
    if resource.is_custom and not resource.has_status and new.get("status") != old.get("status"):
        return True
    if resource.storage_key == "deployments.apps":
        annotations, before = (document["metadata"].get("annotations") or {} for document in (new, old))
        if annotations != before:
            return True
    return _desired(new) != _desired(old)


def _desired(document: Mapping[str, Any]) -> Document:
    """Returns all fields except metadata, status, kind and apiVersion."""
    return {key: value for key, value in document.items() if key not in ("metadata", "status", "kind", "apiVersion")}


def _same(new: Document, old: Document) -> bool:
    if _desired(new) != _desired(old) or (new.get("status") or {}) != (old.get("status") or {}):
        return False
    new_metadata, old_metadata = new["metadata"], old["metadata"]
    return all(
        (new_metadata.get(key) or None) == (old_metadata.get(key) or None) for key in {*new_metadata, *old_metadata}
    )


def _waits_for_grace(resource: Resource, document: Document) -> bool:
    if resource.storage_key == "namespaces":
        return bool((document.get("spec") or {}).get("finalizers"))
    return resource.storage_key == "pods" and int(document["metadata"].get("deletionGracePeriodSeconds") or 0) > 0


def _finalizers_after(finalizers: list[str], propagation: str) -> list[str]:
    if propagation == "Foreground":
        return [*(entry for entry in finalizers if entry not in (ORPHAN, FOREGROUND)), FOREGROUND]
    if propagation == "Orphan":
        return [*(entry for entry in finalizers if entry not in (ORPHAN, FOREGROUND)), ORPHAN]
    if propagation == "Background":
        return [entry for entry in finalizers if entry not in (ORPHAN, FOREGROUND)]
    return list(finalizers)


def _grace_s(resource: Resource, document: Document, options: DeleteOptions) -> int:
    """Returns the grace period of a pod; 0 for other kinds. Source: podStrategy.CheckGracefulDelete."""
    if resource.storage_key != "pods":
        return 0
    spec, status = document.get("spec") or {}, document.get("status") or {}
    grace_s = options.grace_s
    if grace_s is None:
        given = spec.get("terminationGracePeriodSeconds")
        grace_s = 30 if given is None else int(given)
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    return max(grace_s, 1) if grace_s < 0 else grace_s


def _without_version(resource: Resource, document: Document) -> bytes:
    return encode(resource, document, 0).replace(b'"resourceVersion":"0",', b"", 1)
