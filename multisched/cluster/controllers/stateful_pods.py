"""The pods of a StatefulSet (its members): their ordinals, names and claims, and the owners of those claims.

Pure rules over documents. Called by the StatefulSet controller.
Source: pkg/controller/statefulset/stateful_set_utils.go (1.36).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from multisched.cluster.client.object_client import PODS, STATEFUL_SETS, Document, Resource, owner_reference
from multisched.cluster.controllers.controlled_pods import pod_from_template
from multisched.cluster.controllers.revisions import REVISION_LABEL

POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"
DELETE = "Delete"


def ordinals(stateful_set: Document) -> range:
    """Returns the ordinals that its pods should have."""
    spec = stateful_set["spec"]
    start = int((spec.get("ordinals") or {}).get("start", 0))
    return range(start, start + int(spec.get("replicas", 1)))


def pod_name(stateful_set: Document, ordinal: int) -> str:
    return f"{stateful_set['metadata']['name']}-{ordinal}"


def ordinal_of(stateful_set: Document, pod: Document) -> int:
    """Returns the pod's ordinal in this StatefulSet; -1 if the pod's name does not belong to it."""
    parent, _, text = pod["metadata"]["name"].rpartition("-")
    is_member = parent == stateful_set["metadata"]["name"] and text.isascii() and text.isdigit()
    return int(text) if is_member else -1


def identity_labels(stateful_set: Document, ordinal: int) -> dict[str, str]:
    """Returns the labels that identify one member."""
    return {POD_NAME_LABEL: pod_name(stateful_set, ordinal), POD_INDEX_LABEL: str(ordinal)}


def revision_of(pod: Document) -> str:
    """Returns the name of the pod's revision; empty if it has no such label."""
    return str((pod["metadata"].get("labels") or {}).get(REVISION_LABEL, ""))


def new_pod(stateful_set: Document, ordinal: int, *, template: Document, revision: str) -> Document:
    """Builds the pod for an ordinal; volumes of its claims precede the template's own volumes."""
    name = pod_name(stateful_set, ordinal)
    pod = pod_from_template(template, owner=stateful_set, resource=STATEFUL_SETS, name=name)
    pod["metadata"]["labels"] |= identity_labels(stateful_set, ordinal) | {REVISION_LABEL: revision}
    claims = {
        volume: {"name": volume, "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
        for volume, claim in claims_of(stateful_set, ordinal)
    }
    own = [volume for volume in template["spec"].get("volumes") or () if volume["name"] not in claims]
    identity: Document = {"hostname": name}
    if stateful_set["spec"].get("serviceName"):
        identity["subdomain"] = stateful_set["spec"]["serviceName"]
    if claims or own:
        identity["volumes"] = [*claims.values(), *own]
    return {**pod, "spec": {**pod["spec"], **identity}}


def claims_of(stateful_set: Document, ordinal: int) -> Iterator[tuple[str, Document]]:
    """Yields the claims of one member, each with the name of its volume."""
    metadata, spec = stateful_set["metadata"], stateful_set["spec"]
    selected = (spec.get("selector") or {}).get("matchLabels") or {}
    for claim in spec.get("volumeClaimTemplates") or ():
        volume = claim["metadata"]["name"]
        made: Document = {
            "name": f"{volume}-{metadata['name']}-{ordinal}",
            "namespace": metadata["namespace"],
            "labels": {**(claim["metadata"].get("labels") or {}), **selected},
        }
        if claim["metadata"].get("annotations"):
            made["annotations"] = dict(claim["metadata"]["annotations"])
        yield volume, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": made, "spec": claim["spec"]}


# --- owners of claims: the retention policy, implemented by owner references -----------------------------------------


def is_stale(claim: Document, stateful_set: Document, pod_name: str) -> bool:
    """Reports whether a claim belongs to an earlier pod of this name, so that it must be deleted before the new pod is created."""
    return _policy(stateful_set)[1] and any(_names(r, PODS, pod_name) for r in _references(claim))


def claim_owners(claim: Document, stateful_set: Document, pod: Document) -> list[Document] | None:
    """Returns the owner references that the retention policy requires; None if the claim has them or must not be changed."""
    references = _references(claim)
    named = [
        (reference, owner["metadata"]["uid"])
        for resource, owner in ((STATEFUL_SETS, stateful_set), (PODS, pod))
        for reference in references
        if _names(reference, resource, owner["metadata"]["name"])
    ]
    if any(reference.get("uid") != uid for reference, uid in named):
        return None  # owned by an earlier StatefulSet or pod of the same name: left to the garbage collector
    ours = [reference for reference, _ in named]
    others = [r for r in references if r not in ours]
    deletes_with_set, deletes_with_scale = _policy(stateful_set)
    wanted: list[Document] = []
    if (deletes_with_set or deletes_with_scale) and any(r.get("controller") for r in others):
        return others if ours else None  # another object controls it
    is_scaled_down = ordinal_of(stateful_set, pod) not in ordinals(stateful_set)
    if deletes_with_scale and is_scaled_down:
        wanted = [owner_reference(PODS, pod)]
    elif deletes_with_set:
        wanted = [owner_reference(STATEFUL_SETS, stateful_set)]
    is_kept = {r["uid"] for r in ours} == {r["uid"] for r in wanted} and all(r.get("controller") for r in ours)
    return None if is_kept else [*others, *wanted]


def _policy(stateful_set: Document) -> tuple[bool, bool]:
    """Returns whether claims are deleted with the StatefulSet, and whether they are deleted when it is scaled down."""
    policy: Mapping[str, str] = stateful_set["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
    return policy.get("whenDeleted") == DELETE, policy.get("whenScaled") == DELETE


def _references(claim: Document) -> list[Document]:
    return list(claim["metadata"].get("ownerReferences") or ())


def _names(reference: Document, resource: Resource, name: str) -> bool:
    kind = (reference.get("apiVersion"), reference.get("kind"), reference.get("name"))
    return kind == (resource.api_version, resource.kind, name)
