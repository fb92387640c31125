"""How lists of built-in kinds merge: by which key under strategic merge patch, by which keys under server-side apply.

Owns the table. A path is written without list indices, from the kind: `Pod.spec.containers.env`. Source: patchStrategy,
patchMergeKey and listType tags of k8s.io/api 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

REPLACE = "replace"
MERGE = "merge"


@dataclass(frozen=True, slots=True)
class ListRule:
    """`keys` empty and strategy merge: a set of scalars. `apply_keys`: the map keys of server-side apply."""

    strategy: str
    keys: tuple[str, ...] = ()
    apply_keys: tuple[str, ...] = ()


ATOMIC = ListRule(REPLACE)
SET = ListRule(MERGE)


def _keyed(key: str, *apply_keys: str) -> ListRule:
    return ListRule(MERGE, (key,), apply_keys or (key,))


_NAMED = _keyed("name")
_PORTS = _keyed("containerPort", "containerPort", "protocol")

_IN_CONTAINER: Mapping[str, ListRule] = {
    "env": _NAMED,
    "ports": _PORTS,
    "volumeMounts": _keyed("mountPath"),
    "volumeDevices": _keyed("devicePath"),
}
_IN_POD_SPEC: Mapping[str, ListRule] = {
    "containers": _NAMED,
    "initContainers": _NAMED,
    "ephemeralContainers": _NAMED,
    "volumes": _NAMED,
    "imagePullSecrets": _NAMED,
    "schedulingGates": _NAMED,
    "resourceClaims": _NAMED,
    "hostAliases": _keyed("ip"),
    "topologySpreadConstraints": _keyed("topologyKey", "topologyKey", "whenUnsatisfiable"),
}
_IN_METADATA: Mapping[str, ListRule] = {"ownerReferences": _keyed("uid"), "finalizers": SET}
_IN_STATUS: Mapping[str, ListRule] = {
    "conditions": _keyed("type"),
    "podIPs": _keyed("ip"),
    "hostIPs": ATOMIC,
    "addresses": _keyed("type"),
    "resourceClaimStatuses": _NAMED,
}
_CONTAINER_LISTS = frozenset({"containers", "initContainers", "ephemeralContainers"})
_SPECIAL: Mapping[str, ListRule] = {
    "Service.spec.ports": _keyed("port", "port", "protocol"),
    "Node.spec.podCIDRs": SET,
    "Node.spec.taints": ATOMIC,
    "ServiceAccount.secrets": _NAMED,
    "ServiceAccount.imagePullSecrets": _NAMED,
    "MutatingWebhookConfiguration.webhooks": _NAMED,
    "ValidatingWebhookConfiguration.webhooks": _NAMED,
    "PersistentVolumeClaim.status.conditions": _keyed("type"),
}


def child(path: str, key: str) -> str:
    """The path of a field."""
    return f"{path}.{key}"


@lru_cache(maxsize=4_096)
def list_rule(path: str, key: str) -> ListRule:
    """How the list `key` below `path` merges; lists without a rule are replaced whole."""
    special = _SPECIAL.get(child(path, key))
    if special is not None:
        return special
    parent = path.rpartition(".")[2]
    if parent == "metadata":
        return _IN_METADATA.get(key, ATOMIC)
    if parent in _CONTAINER_LISTS:
        return _IN_CONTAINER.get(key, ATOMIC)
    if parent == "status":
        return _IN_STATUS.get(key, ATOMIC)
    if parent == "spec" and (path == "Pod.spec" or path.endswith("template.spec")):
        return _IN_POD_SPEC.get(key, ATOMIC)
    return ATOMIC
