"""From a parsed target to a response: the verbs on objects and their subresources.

`Verbs` has no state; it decodes bodies, calls the handler, and encodes responses. Requests are already authorized.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from multisched.cluster.api import forms, schemas, subresources
from multisched.cluster.api.objects import DeleteOptions, Objects
from multisched.cluster.api.reads import JSON_HEADERS, Reads, chosen_items, selection
from multisched.cluster.api.reviews import Reviews
from multisched.cluster.api.watch import WatchStream
from multisched.cluster.base import api_types, errors
from multisched.cluster.base.metadata import key_of
from multisched.cluster.base.request import TRUE, ApiRequest, Target
from multisched.cluster.base.resources import Catalog, Document, Resource
from multisched.cluster.patching import apply, patch
from multisched.cluster.tables.table import Tables
from multisched.model.wire import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH, Response

BODY_BYTES_MAX = 3 * 1024 * 1024
"""Maximum size of a request body, the same as in upstream."""
YAML_TYPES = ("application/yaml", "application/apply-patch+yaml")
ACCEPTED_TYPES = ("application/json", "application/yaml")
RETURNS_DELETED = frozenset(
    {
        "pods",
        "services",
        "serviceaccounts",
        "persistentvolumeclaims",
        "persistentvolumes",
        "podtemplates",
        "resourcequotas",
    }
)
"""Kinds whose delete returns the object instead of a Status."""

_OF_CONTAINERS = frozenset({"log", "exec", "attach", "portforward", "proxy"})
"""Subresources that a real API server forwards to a kubelet."""


@dataclass(slots=True)
class Call:
    """One request with its target and resource."""

    request: ApiRequest
    target: Target
    resource: Resource
    warnings: tuple[str, ...] = ()

    @property
    def namespace(self) -> str:
        """Returns the namespace of the objects of this call; empty for a cluster-scoped kind."""
        return self.target.namespace if self.resource.namespaced else ""

    def check_fields(self, document: Document) -> None:
        """Applies fieldValidation: Strict rejects unknown fields; Warn (the default) and Ignore drop them, and Warn adds warnings."""
        mode = self.target.params.get("fieldValidation", "Warn")
        name = api_types.type_name(self.resource.group, self.resource.version, self.resource.kind)
        if self.resource.is_custom:
            name = ""
            unknown = schemas.unknown_fields((self.resource.schema or {}).get("openAPIV3Schema"), document)
        elif name:
            unknown = api_types.unknown_fields(name, document)
        else:
            return
        if unknown and mode == "Strict":
            said = ", ".join(f'unknown field "{path}"' for path in unknown)
            kind = (
                f'{self.resource.kind} in version "{self.resource.version}" cannot be handled as a {self.resource.kind}'
            )
            raise errors.bad_request(f"{kind}: strict decoding error: {said}")
        if unknown and name:
            api_types.drop_unknown(name, document)
        if mode == "Warn":
            self.warnings = tuple(f'unknown field "{path}"' for path in unknown)

    @property
    def manager(self) -> str:
        """Returns the field manager of this write."""
        return self.target.params.get("fieldManager") or self.request.user_agent.partition("/")[0] or "unknown"

    def refuse_method(self) -> errors.ApiError:
        """Returns a 405 error for this call."""
        return errors.method_not_allowed(self.resource.group, self.resource.plural, self.request.method)


def answered(status: int, body: bytes, warnings: tuple[str, ...] = ()) -> Response:
    """Builds a JSON response, with the warnings in its header."""
    if not warnings:
        return Response(status, body, JSON_HEADERS)
    said = ", ".join(f'299 - "{_header_text(warning)}"' for warning in warnings)
    return Response(status, body, {**JSON_HEADERS, "warning": said})


def _header_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def decode(request: ApiRequest) -> Document:
    """Decodes the body to a document. Raises 400, 413 or 415 if it is not one."""
    body = request.body or b""
    if len(body) > BODY_BYTES_MAX:
        message = f"Request entity too large: limit is {BODY_BYTES_MAX}"
        raise errors.ApiError(413, "RequestEntityTooLarge", message)
    if body.startswith(api_types.MAGIC):
        return api_types.decode(body)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        document = _decode_yaml(body, request.content_type, problem)
    if not isinstance(document, dict):
        raise errors.bad_request("couldn't get version/kind; json parse error: the body is not an object")
    return document


def _decode_yaml(body: bytes, content_type: str, problem: orjson.JSONDecodeError) -> Any:
    if content_type.partition(";")[0].strip() not in YAML_TYPES:
        raise errors.bad_request(f"the object provided is unrecognized (must be of type Object): {problem}")
    from multisched.model.yaml_text import NotYamlError, yaml_documents

    try:
        documents = yaml_documents(body.decode())
        return orjson.loads(orjson.dumps(documents[0] if len(documents) == 1 else None))
    except (NotYamlError, UnicodeDecodeError, TypeError) as bad:
        raise errors.bad_request(f"error parsing YAML: {bad}") from None


def prune_nulls(value: Any) -> Any:
    """Returns the document without nulls: in every Kubernetes type, a null field equals a missing one."""
    if isinstance(value, dict):
        return {key: prune_nulls(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [prune_nulls(entry) for entry in value]
    return value


@dataclass(slots=True)
class Verbs:
    """Answers resource requests."""

    catalog: Catalog
    objects: Objects
    reads: Reads
    reviews: Reviews
    tables: Tables

    def answer(self, request: ApiRequest, target: Target) -> Response | WatchStream:
        """Handles one request. Raises ApiError."""
        resource = self.catalog.find(target.group, target.version, target.plural)
        if resource is None:
            raise errors.path_not_found()
        call = Call(request, target, resource)
        if target.subresource:
            return self._below(call)
        if target.verb not in resource.verbs:
            raise call.refuse_method()
        handler = getattr(self, "_" + target.verb)
        answer: Response | WatchStream = handler(call)
        return answer

    def _form(self, call: Call) -> forms.Form:

        shape = forms.negotiate(call.request.accept)
        return forms.Form(call.resource, shape, call.target.params.get("includeObject", "Metadata"), self.tables.render)

    # -- reads ---------------------------------------------------------------------------------------------------

    def _get(self, call: Call) -> Response:
        stored = self.objects.stored(call.resource, call.namespace, call.target.name)
        version = call.target.params.get("resourceVersion", "")
        if version.isdigit() and int(version) > self.objects.store.version:
            raise errors.version_too_large(int(version), self.objects.store.version)
        return answered(200, self._form(call).one(stored.raw))

    def _list(self, call: Call) -> Response:
        return self.reads.list(call.resource, call.target, self._form(call))

    def _watch(self, call: Call) -> WatchStream:
        return self.reads.watch(call.resource, call.target, self._form(call))

    # -- writes --------------------------------------------------------------------------------------------------

    def _document(self, call: Call) -> Document:
        document = decode(call.request)
        resource = call.resource
        kind, api_version = document.get("kind"), document.get("apiVersion")
        if kind and kind != resource.kind:
            raise errors.bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
                f"the body is of kind {kind}"
            )
        if api_version and api_version != resource.api_version:
            raise errors.bad_request(
                f"the API version in the data ({api_version}) does not match the expected API version ({resource.api_version})"
            )
        if b"null" in (call.request.body or b""):
            document = prune_nulls(document)
        call.check_fields(document)
        return forms.inward(resource, document)

    def _create(self, call: Call) -> Response:
        document = self._document(call)
        if not call.resource.is_stored:
            return self._create_unstored(call, document)
        raw = self.objects.create(call.resource, document, call.namespace, is_dry_run=call.target.is_dry_run)
        return answered(201, self._form(call).one(raw), call.warnings)

    def _update(self, call: Call) -> Response:
        return self._replace(call, self._document(call))

    def _replace(self, call: Call, document: Document) -> Response:
        target, resource = call.target, call.resource
        named = (document.get("metadata") or {}).get("name", target.name)
        if named != target.name:
            raise errors.bad_request(
                f"the name of the object ({named}) does not match the name on the URL ({target.name})"
            )
        key = key_of(resource, call.namespace, target.name)
        if not target.subresource and key not in self.objects.store.collection(resource.storage_key).objects:
            raise errors.not_found(resource.refusal_group, resource.plural, target.name)
        raw = self.objects.replace(
            resource,
            call.namespace,
            target.name,
            document,
            subresource=target.subresource,
            is_dry_run=target.is_dry_run,
            manager=call.manager,
        )
        return answered(200, self._form(call).one(raw), call.warnings)

    def _patch(self, call: Call) -> Response:
        media = call.request.content_type.partition(";")[0].strip()
        if media == APPLY_PATCH:
            return self._apply(call)
        stored = self.objects.stored(call.resource, call.namespace, call.target.name)
        current = orjson.loads(forms.outward(call.resource, stored.raw))
        patched = self._patched(call, media, current)
        patched = {key: value if key == "status" else prune_nulls(value) for key, value in patched.items()}
        return self._replace(call, forms.inward(call.resource, patched))

    def _apply(self, call: Call) -> Response:
        """Handles server-side apply: creates the object if it does not exist."""
        target, resource = call.target, call.resource
        manager = target.params.get("fieldManager")
        if not manager:
            cause = errors.required("fieldManager", "is required for apply patch")
            raise errors.invalid("meta.k8s.io", "PatchOptions", "", [cause])
        applied = prune_nulls(self._document(call))
        metadata = applied.setdefault("metadata", {})
        if metadata.get("managedFields"):
            raise errors.bad_request("metadata.managedFields must be nil")
        metadata.setdefault("name", target.name)
        force, now = target.params.get("force") in TRUE, self.objects.minting.now()
        key = key_of(resource, call.namespace, target.name)
        stored = self.objects.store.collection(resource.storage_key).objects.get(key)
        if stored is None:
            if target.subresource or metadata.get("uid"):
                raise errors.not_found(resource.refusal_group, resource.plural, target.name)
            document = apply.apply(resource, None, applied, manager, now, force=force)
            raw = self.objects.create(resource, document, call.namespace, is_dry_run=target.is_dry_run)
            return answered(201, self._form(call).one(raw), call.warnings)
        live = stored.document()
        document = apply.apply(resource, live, applied, manager, now, force=force, subresource=target.subresource)
        return self._replace(call, document)

    def _patched(self, call: Call, media: str, current: Document) -> Document:
        if media == JSON_PATCH:
            try:
                operations = orjson.loads(call.request.body or b"")
            except orjson.JSONDecodeError as problem:
                raise errors.bad_request(f"error decoding patch: {problem}") from None
            patched = patch.json_patch(current, operations)
        elif media == MERGE_PATCH:
            patched = patch.merge(current, decode(call.request))
        elif media == STRATEGIC_MERGE_PATCH and not call.resource.is_custom:
            patched = patch.strategic(call.resource.kind, current, decode(call.request))
        else:
            supported = [JSON_PATCH, MERGE_PATCH, "application/apply-patch+yaml"]
            if not call.resource.is_custom:
                supported.insert(2, STRATEGIC_MERGE_PATCH)
            raise errors.unsupported_media(media, supported)
        if not isinstance(patched, dict):
            raise errors.bad_request("the patched document is not an object")
        return patched

    # -- deletes -------------------------------------------------------------------------------------------------

    def _options(self, call: Call) -> DeleteOptions:
        given = decode(call.request) if call.request.body else {}
        params = call.target.params
        grace = params.get("gracePeriodSeconds") or given.get("gracePeriodSeconds")
        preconditions = given.get("preconditions") or {}
        propagation = params.get("propagationPolicy") or given.get("propagationPolicy") or ""
        if given.get("orphanDependents") or params.get("orphanDependents") == "true":
            propagation = "Orphan"
        if "All" in (given.get("dryRun") or ()):
            call.target.params = {**params, "dryRun": "All"}
        uid, version = preconditions.get("uid") or "", preconditions.get("resourceVersion") or ""
        return DeleteOptions(None if grace is None else int(grace), uid, version, propagation)

    def _delete(self, call: Call) -> Response:
        options = self._options(call)
        resource, name = call.resource, call.target.name
        stored = self.objects.stored(resource, call.namespace, name)
        raw, is_removed = self.objects.delete(
            resource, call.namespace, name, options, is_dry_run=call.target.is_dry_run
        )
        if not is_removed or resource.storage_key in RETURNS_DELETED:
            return answered(200, self._form(call).one(raw), call.warnings)
        details = {"name": name, "group": resource.group, "kind": resource.plural, "uid": stored.uid}
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": {key: value for key, value in details.items() if value},
        }
        return answered(200, orjson.dumps(status))

    def _deletecollection(self, call: Call) -> Response:
        options = self._options(call)
        resource = call.resource
        collection = self.objects.store.collection(resource.storage_key)
        deleted = []
        for key, _stored in chosen_items(collection, selection(resource, call.target)):
            namespace, _, name = key.rpartition("/")
            raw, _ = self.objects.delete(resource, namespace, name, options, is_dry_run=call.target.is_dry_run)
            deleted.append(raw)
        return answered(200, self._form(call).many(deleted, self.objects.store.version, "", None))

    # -- subresources --------------------------------------------------------------------------------------------

    def _create_unstored(self, call: Call, document: Document) -> Response:
        if call.resource.plural == "bindings":
            pods = self._kind("", "v1", "pods")
            name = str((document.get("metadata") or {}).get("name") or "")
            is_dry_run = call.target.is_dry_run
            return answered(
                201, subresources.bind(self.objects, pods, call.namespace, name, document, is_dry_run=is_dry_run)
            )
        review = self.reviews.answer(call.resource, document, call.namespace, call.request.user)
        return answered(201, orjson.dumps(review))

    def _kind(self, group: str, version: str, plural: str) -> Resource:
        found = self.catalog.find(group, version, plural)
        assert found is not None
        return found

    def _below(self, call: Call) -> Response | WatchStream:
        name, verb = call.target.subresource, call.target.verb
        known = call.resource.subresource(name)
        if known is None:
            raise self._missing_below(call)
        if verb not in known.verbs:
            raise call.refuse_method()
        if name == "binding" and call.resource.storage_key == "pods":
            return self._bind(call)
        if name == "eviction":
            return self._evict(call)
        if name == "scale":
            return self._scale(call)
        if name == "token":
            return self._token(call)
        if name == "finalize":
            return self._finalize(call)
        handler = getattr(self, "_" + verb)
        answer: Response = handler(call)
        return answer

    def _missing_below(self, call: Call) -> errors.ApiError:
        """Returns the error for an unknown subresource. For pods' `log`, `exec` and so on, it says why they are missing."""
        if call.resource.storage_key != "pods" or call.target.subresource not in _OF_CONTAINERS:
            return errors.path_not_found()
        if call.target.subresource == "log" and call.request.method != "GET":
            return errors.method_not_allowed("", "pods/log", call.request.method)
        self._get(call)  # raises 404 if the pod does not exist
        return errors.bad_request(
            f'{call.target.subresource} of pod "{call.target.name}" is not available: the fake kubelets of the embedded'
            " cluster run no containers"
        )

    def _bind(self, call: Call) -> Response:
        target = call.target
        document = decode(call.request)
        body = subresources.bind(
            self.objects, call.resource, call.namespace, target.name, document, is_dry_run=target.is_dry_run
        )
        return answered(201, body)

    def _evict(self, call: Call) -> Response:
        budgets = self._kind("policy", "v1", "poddisruptionbudgets")
        target, document = call.target, decode(call.request) if call.request.body else {}
        body = subresources.evict(
            self.objects, call.resource, budgets, call.namespace, target.name, document, is_dry_run=target.is_dry_run
        )
        return answered(201, body)

    def _token(self, call: Call) -> Response:
        document = decode(call.request) if call.request.body else {}
        review = self.reviews.token_request(call.resource, call.namespace, call.target.name, document)
        return answered(201, orjson.dumps(review))

    def _finalize(self, call: Call) -> Response:
        """Handles PUT namespaces/NAME/finalize: replaces spec.finalizers; a deleting namespace is removed with its last finalizer."""
        document = decode(call.request)
        stored = self.objects.stored(call.resource, "", call.target.name)
        old = stored.document()
        finalizers = list((document.get("spec") or {}).get("finalizers") or ())
        new = {**old, "spec": {**(old.get("spec") or {}), "finalizers": finalizers}}
        new["metadata"] = dict(old["metadata"])
        raw = self.objects.write(
            call.resource, stored, old, new, subresource="finalize", is_dry_run=call.target.is_dry_run
        )
        return answered(200, raw)

    def _scale(self, call: Call) -> Response:
        target, resource = call.target, call.resource
        current = self.objects.stored(resource, call.namespace, target.name).document()
        scale = subresources.scale_of(resource, current)
        if target.verb == "get":
            return answered(200, orjson.dumps(scale))
        if target.verb == "patch":
            media = call.request.content_type.partition(";")[0].strip()
            scale = self._patched(call, media, scale)
        else:
            scale = decode(call.request)
        changed = subresources.apply_scale(resource, current, scale)
        raw = self.objects.replace(
            resource,
            call.namespace,
            target.name,
            changed,
            is_dry_run=target.is_dry_run,
            manager=call.manager,
            tracked_as="scale",
        )
        return answered(200, orjson.dumps(subresources.scale_of(resource, orjson.loads(raw))))
