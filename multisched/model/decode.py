"""Decodes JSON of the API server into slim pods and nodes: typed, partial and interning; never raises for a bad object.

If the scheduling fields of a pod or node cannot be read, the result has `malformed` set. Its owner gets a message, and
all other objects are unaffected. Only a document that is not JSON, or has no metadata, raises `DecodeError`.

The decoder owns the intern tables; one decoder per process is enough. Entries live as long as the decoder. Their number
is bounded (`INTERNED_MAX`): beyond it the tables are cleared, which loses sharing but not correctness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec

from multisched.model import resources
from multisched.model.decode_metadata import (
    BAD_TEXT,
    WireIdentity,
    WireMetadata,
    WireOwnerReference,
    controller_of,
    with_valid_text,
)
from multisched.model.decode_placement import (
    WirePodAffinity,
    WireSpread,
    compile_pod_affinity,
    compile_spread,
    held_pod_affinity,
)
from multisched.model.decode_selectors import (
    AFFINITY_TERMS_MAX,
    SELECTOR_VALUES_MAX,
    Int32,
    Refusal,
    Wire,
    WireNodeSelector,
    WireNodeTerm,
    compile_term,
)
from multisched.model.decode_volumes import (
    WireResourceClaim,
    WireVolume,
    local_volumes,
    pod_resource_claims,
    pod_volumes,
    without_unread,
)
from multisched.model.objects import (
    CPU,
    MEMORY,
    PODS,
    HostPort,
    Image,
    Node,
    NodeAffinity,
    Owner,
    Pod,
    PodSpec,
    QosClass,
    Requests,
)
from multisched.model.placement import PodAffinity
from multisched.model.quantity import QuantityError, milli_of_nano, value_of_nano
from multisched.model.resources import NAME_SHOWN_MAX, ContainerRequests, QuantityMap, QuantityText, ResourceBlock
from multisched.model.selectors import (
    NodeSelector,
    Operator,
    PreferredTerm,
    Requirement,
    Taint,
    Toleration,
)
from multisched.model.version import version_of

INTERNED_MAX = 200_000
LABELS_MAX = 1_024
TOLERATIONS_MAX = 256
CONTAINERS_MAX = 512
FEATURES_MAX = 256
"""Work and memory per pod are bounded, as authors of pods are not trusted. A pending pod beyond a
bound is refused. What a placed pod holds counts without a bound, up to what the API server stores, because the placement of
other pods depends on it (I1)."""
ANNOTATION_BYTES_MAX = 4_096
DESCRIPTION_BYTES_MAX = 64 * 1024  # an annotation that describes a node's devices
ANNOTATIONS_BYTES_MAX = 16 * 1024
"""Size of all annotations of an object together; the longest are dropped first. The API server allows 256 KiB per pod."""
SPEC_BYTES_MAX = 64 * 1024 * 1024
"""Size of the shared specs, as documents."""
MAP_BYTES_MAX = 64 * 1024 * 1024
"""Size of the shared labels and annotations, with PAIR_BYTES per pair in addition to its text."""
PAIR_BYTES = 128
ALLOCATABLES_KEPT = 1_024
"""Distinct sets of amounts that are cached: most nodes are of a few kinds."""
LONG_KEY_BYTES = 2_048
"""A longer document is identified by its digest."""

ALLOCATABLE_MAX = 2**50
"""A larger node capacity is a mistake, and scores computed from it would overflow: a petabyte, or a trillion CPUs."""

IMAGE_BYTES_MAX = 2**50
"""Larger sizes of images count as this, so that their sums cannot overflow."""

_UNREAD_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
_EMPTY: Mapping[str, str] = {}

T = TypeVar("T")


class DecodeError(ValueError):
    """The document is not a Kubernetes object."""


class _Metadata(WireMetadata):
    creation_timestamp: datetime | None = None


class _Port(Wire):
    host_port: Int32 = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class _RestartRule(Wire):
    action: str = ""


class _Container(Wire):
    name: str = ""
    image: str = ""
    ports: list[_Port] | None = None
    resources: ResourceBlock | None = None
    restart_policy: str | None = None
    restart_policy_rules: list[_RestartRule] | None = None


class _Toleration(Wire):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class _Gate(Wire):
    name: str = ""


class _Preferred(Wire):
    weight: Int32 = 0
    preference: WireNodeTerm = msgspec.field(default_factory=WireNodeTerm)


class _NodeAffinity(Wire):
    required: WireNodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[_Preferred] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class _Affinity(Wire):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: WirePodAffinity | None = None
    pod_anti_affinity: WirePodAffinity | None = None


class _Claim(Wire):
    claim_name: str = ""


class _ImageVolume(Wire):
    reference: str = ""


class _Volume(Wire):
    persistent_volume_claim: _Claim | None = None
    image: _ImageVolume | None = None
    ephemeral: msgspec.Raw | None = None


class _SchedulingGroup(Wire):
    pod_group_name: str | None = None


class _SharedSpec(Wire):
    """The part of a spec that pods of one workload share; its encoding is the intern key."""

    scheduler_name: str = "default-scheduler"
    priority: Int32 | None = None
    preemption_policy: str | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    resources: ResourceBlock | None = None
    overhead: QuantityMap = None
    tolerations: list[_Toleration] | None = None
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    host_network: bool = False
    host_users: bool | None = None
    topology_spread_constraints: list[WireSpread] | None = None
    resource_claims: list[WireResourceClaim] | None = None
    volumes: list[WireVolume] | None = None
    scheduling_group: _SchedulingGroup | None = None


class _Spec(_SharedSpec):
    node_name: str = ""
    scheduling_gates: list[_Gate] | None = None


class _ContainerStatus(Wire):
    name: str = ""
    resources: ResourceBlock | None = None
    allocated_resources: QuantityMap = None


class _Condition(Wire):
    type: str = ""
    status: str = ""
    reason: str = ""


class _PodStatus(Wire):
    phase: str = "Pending"
    nominated_node_name: str = ""
    start_time: datetime | None = None
    conditions: list[_Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None
    resources: ResourceBlock | None = None
    allocated_resources: QuantityMap = None


class _Pod(Wire):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class _Taint(Wire):
    key: str = ""
    value: str = ""
    effect: str = ""


class _NodeSpec(Wire):
    unschedulable: bool = False
    taints: list[_Taint] | None = None


class _Image(Wire):
    names: list[str] | None = None
    size_bytes: int = 0


class _NodeStatus(Wire):
    allocatable: QuantityMap = None
    capacity: QuantityMap = None
    images: list[_Image] | None = None
    declared_features: list[str] | None = None


class _Node(Wire):
    metadata: _Metadata
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


class _Bare(Wire):
    metadata: WireIdentity


class _NodeNameOnly(Wire):
    node_name: str = ""
    scheduler_name: str = ""


class _BarePod(Wire):
    metadata: WireIdentity
    spec: _NodeNameOnly = msgspec.field(default_factory=_NodeNameOnly)


class Decoder:
    """Decodes pods and nodes; shares equal specs, labels and annotations between them."""

    def __init__(self) -> None:
        self._pod = msgspec.json.Decoder(_Pod)
        self._node = msgspec.json.Decoder(_Node)
        self._bare = msgspec.json.Decoder(_Bare)
        self._bare_pod = msgspec.json.Decoder(_BarePod)
        self._spec_key = msgspec.json.Encoder(order="deterministic")
        self._specs: dict[bytes, PodSpec] = {}
        self._spec_bytes = self._map_bytes = 0
        self._refused: dict[bytes, str] = {}
        self._maps: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
        self._names: dict[str, str] = {}
        self._owners: dict[tuple[str, str, str, str], Owner] = {}
        self._needed: dict[str, int] = {}
        """Annotation -> bytes that are kept of it."""

    def keep(self, annotations: Iterable[str], bytes_max: int = ANNOTATION_BYTES_MAX) -> None:
        """Makes these annotations exempt from the bounds: they are kept from now on, however many others an object has.

        Values are cut at `bytes_max`: a longer one is invalid for every reader, which reports it.
        """
        self._needed.update(dict.fromkeys(annotations, bytes_max))

    def pod(self, document: bytes | msgspec.Raw) -> Pod:
        """Decodes one pod; `malformed` names the first unusable field. Raises DecodeError if it is not an object."""
        try:
            return self._read_pod(document)
        except UnicodeDecodeError:
            pod = self._read_pod(with_valid_text(document))
            return pod if pod.malformed else msgspec.structs.replace(pod, malformed=BAD_TEXT)

    def node(self, document: bytes | msgspec.Raw) -> Node:
        """Decodes one node; `malformed` names the first unusable field. Raises DecodeError if it is not an object."""
        try:
            return self._read_node(document)
        except UnicodeDecodeError:
            node = self._read_node(with_valid_text(document))
            return node if node.malformed else msgspec.structs.replace(node, malformed=BAD_TEXT)

    def _read_pod(self, document: bytes | msgspec.Raw) -> Pod:
        try:
            wire = self._pod.decode(document)
        except msgspec.ValidationError as error:
            return self._bad_pod(document, str(error))
        except (msgspec.DecodeError, RecursionError) as error:
            raise DecodeError(str(error)) from error
        meta, status = wire.metadata, wire.status
        if not meta.uid:
            raise DecodeError("metadata.uid: is missing; it identifies the pod")
        spec, refusal = self._shared_spec(wire.spec)
        held, held_scoring = None, None
        labels = self._interned(meta.labels) if meta.labels else _EMPTY
        refusal = refusal or (_too_many_labels(labels) if len(labels) > LABELS_MAX else "")
        if _may_be_resizing(wire):
            try:
                held, held_scoring = _held(wire, spec)
            except QuantityError as error:
                refusal = refusal or f"status: {error}"
        gates, shared = wire.spec.scheduling_gates, self._shared_texts()
        return Pod(
            namespace=shared(meta.namespace, meta.namespace),
            name=meta.name,
            uid=meta.uid,
            version=version_of(meta.resource_version),
            spec=spec,
            labels=labels,
            annotations=self._annotations(meta.annotations) if meta.annotations else _EMPTY,
            owner=self._owner(meta.owner_references) if meta.owner_references else None,
            node=shared(wire.spec.node_name, wire.spec.node_name),
            nominated_node=shared(status.nominated_node_name, status.nominated_node_name),
            phase=shared(status.phase, status.phase),
            gates=tuple(g.name for g in gates) if gates else (),
            is_deleting=meta.deletion_timestamp is not None,
            is_ready=_is_ready(status.conditions),
            is_preempted=_is_preempted(status.conditions),
            created_s=meta.creation_timestamp.timestamp() if meta.creation_timestamp else 0.0,
            started_s=status.start_time.timestamp() if status.start_time else 0.0,
            held=held,
            held_scoring=held_scoring,
            malformed=refusal,
        )

    def _read_node(self, document: bytes | msgspec.Raw) -> Node:
        try:
            wire = self._node.decode(document)
        except msgspec.ValidationError as error:
            meta = self._decode(self._bare, document).metadata
            return Node(meta.name, meta.uid, version_of(meta.resource_version), malformed=str(error))
        except (msgspec.DecodeError, RecursionError) as error:
            raise DecodeError(str(error)) from error
        labels, shared = self._interned(wire.metadata.labels), self._shared_texts()
        refusal = _too_many_labels(labels) if len(labels) > LABELS_MAX else ""
        allocatable: Requests = {}
        try:
            allocatable = _allocatable(tuple((wire.status.allocatable or {}).items()))
        except (Refusal, QuantityError) as error:
            refusal = refusal or str(error)
        taints = wire.spec.taints or ()
        return Node(
            name=wire.metadata.name,
            uid=wire.metadata.uid,
            version=version_of(wire.metadata.resource_version),
            labels=labels,
            annotations=self._annotations(wire.metadata.annotations or {}),
            taints=tuple(Taint(t.key, t.value, t.effect) for t in taints),
            is_unschedulable=wire.spec.unschedulable,
            allocatable=allocatable,
            reduced_capacity=resources.reduced_capacity(wire.status.capacity, wire.status.allocatable),
            images=tuple(
                Image(tuple(shared(n, n) for n in i.names or ()), max(0, min(i.size_bytes, IMAGE_BYTES_MAX)))
                for i in wire.status.images or ()
            ),
            declared_features=tuple(shared(f, f) for f in (wire.status.declared_features or ())[:FEATURES_MAX]),
            malformed=refusal,
        )

    def _bad_pod(self, document: bytes | msgspec.Raw, reason: str) -> Pod:
        bare = self._decode(self._bare_pod, document)
        meta = bare.metadata
        if not meta.uid:
            raise DecodeError("metadata.uid: is missing; it identifies the pod")
        return Pod(
            meta.namespace,
            meta.name,
            meta.uid,
            version_of(meta.resource_version),
            spec=PodSpec(scheduler_name=bare.spec.scheduler_name),
            node=bare.spec.node_name,
            malformed=reason,
        )

    @staticmethod
    def _decode(decoder: msgspec.json.Decoder[T], document: bytes | msgspec.Raw) -> T:
        try:
            return decoder.decode(document)
        except (msgspec.DecodeError, RecursionError) as error:
            raise DecodeError(str(error)) from error

    def _shared_spec(self, wire: _Spec) -> tuple[PodSpec, str]:
        node_name, gates = wire.node_name, wire.scheduling_gates
        wire.node_name, wire.scheduling_gates = "", None
        wire.volumes = without_unread(wire.volumes) if wire.volumes else None
        key = self._spec_key.encode(wire)
        wire.node_name, wire.scheduling_gates = node_name, gates
        size = len(key)
        if size > LONG_KEY_BYTES:
            key = blake2b(key, digest_size=32).digest()
        spec = self._specs.get(key)
        if spec is not None:
            return spec, self._refused.get(key, "")
        self._spec_bytes += size
        if len(self._specs) >= INTERNED_MAX or self._spec_bytes > SPEC_BYTES_MAX:
            self._specs.clear()
            self._refused.clear()
            self._spec_bytes = size
        try:
            spec, refusal = compile_spec(wire), ""
        except (Refusal, QuantityError) as error:
            place = _place_of_bad_amounts(wire) if isinstance(error, QuantityError) else ""
            spec, refusal = _held_spec(wire), f"{place}{error}"
            self._refused[key] = refusal
        spec = self._specs[key] = msgspec.structs.replace(spec, size_bytes=size)
        return spec, refusal

    def _interned(self, pairs: dict[str, str] | None) -> Mapping[str, str]:
        if not pairs:
            return _EMPTY
        key = tuple(pairs.items())
        known = self._maps.get(key)
        if known is not None:
            return known
        size = sum(len(name) + len(text) + PAIR_BYTES for name, text in key)
        self._map_bytes += size
        if len(self._maps) >= INTERNED_MAX or self._map_bytes > MAP_BYTES_MAX:
            self._maps.clear()
            self._map_bytes = size
        self._maps[key] = pairs
        return pairs

    def _annotations(self, pairs: dict[str, str]) -> Mapping[str, str]:
        kept = {k: v for k, v in pairs.items() if k != _UNREAD_ANNOTATION and len(v) <= ANNOTATION_BYTES_MAX}
        if len(kept) > LABELS_MAX:
            kept = {}
        if len(kept) < len(pairs):
            kept |= {k: pairs[k][:most] for k, most in self._needed.items() if k in pairs}
        return self._interned(self._short(kept))

    def _short(self, annotations: dict[str, str]) -> dict[str, str]:
        """Keeps the needed annotations, and the shortest of the others, up to ANNOTATIONS_BYTES_MAX together."""
        left = ANNOTATIONS_BYTES_MAX - sum(map(len, annotations)) - sum(map(len, annotations.values()))
        sizes = {key: len(key) + len(value) for key, value in annotations.items()} if left < 0 else {}
        for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
            if left >= 0:
                break
            if key not in self._needed:
                left += sizes[key]
                del annotations[key]
        return annotations

    def _owner(self, references: list[WireOwnerReference] | None) -> Owner | None:
        reference = controller_of(references)
        if reference is None:
            return None
        key = (reference.kind, reference.name, reference.uid, reference.api_version)
        if len(self._owners) >= INTERNED_MAX:
            self._owners.clear()
        return self._owners.setdefault(key, Owner(*key))

    def _shared_texts(self) -> Callable[[str, str], str]:
        """Returns a function that is called with a text twice, and returns the one object for that text."""
        if len(self._names) >= INTERNED_MAX:
            self._names.clear()
        return self._names.setdefault


def compile_spec(wire: _SharedSpec) -> PodSpec:
    """Compiles the fields of a spec that scheduling reads. Raises Refusal or QuantityError if they cannot be used."""
    containers, inits = wire.containers or [], wire.init_containers or []
    if len(containers) + len(inits) > CONTAINERS_MAX:
        raise Refusal(f"spec.containers: {len(containers) + len(inits)} containers, more than {CONTAINERS_MAX}")
    return msgspec.structs.replace(
        _resource_spec(wire),
        can_preempt=wire.preemption_policy != "Never",
        qos=_qos(wire),
        tolerations=_tolerations(wire.tolerations),
        affinity=_affinity(wire),
        pod_affinity=_pod_affinity(wire),
        spread=compile_spread(wire.topology_spread_constraints),
        host_ports=_host_ports(containers, inits),
        images=tuple(c.image for c in (*inits, *containers)),
        image_volumes=tuple(v.image.reference for v in wire.volumes or () if v.image),
        volumes=pod_volumes(wire.volumes),
        local_volumes=local_volumes(wire.volumes),
        pod_group=_pod_group(wire),
        resource_claims=pod_resource_claims(wire.resource_claims),
        required_features=_required_features(wire),
        unsupported=_unsupported(wire),
    )


def _held_spec(wire: _SharedSpec) -> PodSpec:
    """Returns what a pod with an unusable spec holds on its node: all that the placement of other pods depends on (I1)."""
    _drop_bad_amounts(wire)
    affinity = wire.affinity or _Affinity()
    return msgspec.structs.replace(
        _resource_spec(wire),
        can_preempt=wire.preemption_policy != "Never",
        pod_affinity=held_pod_affinity(affinity.pod_affinity, affinity.pod_anti_affinity),
        host_ports=_host_ports(wire.containers or [], wire.init_containers or []),
        volumes=pod_volumes(wire.volumes, is_bounded=False),
        local_volumes=local_volumes(wire.volumes),
        pod_group=_pod_group(wire),
        resource_claims=pod_resource_claims(wire.resource_claims, is_bounded=False),
        unsupported=_unsupported(wire),
    )


def _drop_bad_amounts(wire: _SharedSpec) -> None:
    """Removes unreadable amounts from a spec, so that they count as zero. Upstream cannot have any: MustParse panics."""
    blocks = [c.resources for c in (*(wire.containers or ()), *(wire.init_containers or ()))]
    for block in (*blocks, wire.resources):
        if block is not None:
            block.requests, block.limits = _readable(block.requests), _readable(block.limits)
    wire.overhead = _readable(wire.overhead)


def _readable(quantities: QuantityMap) -> QuantityMap:
    found = {}
    for name, text in (quantities or {}).items():
        with suppress(QuantityError):
            resources.exact_requests({name: text})
            found[name] = text
    return found


def _too_many_labels(labels: Mapping[str, str]) -> str:
    return f"metadata.labels: {len(labels)} entries, more than the {LABELS_MAX} that are read; remove some"


def _place_of_bad_amounts(wire: _SharedSpec) -> str:
    """Returns the first field with unusable quantities, with a colon, so that the message names the container."""
    named = [*(wire.containers or ()), *(wire.init_containers or ())]
    blocks = [(f"spec.containers[{c.name[:NAME_SHOWN_MAX]}].resources", c.resources or ResourceBlock()) for c in named]
    blocks.append(("spec.resources", wire.resources or ResourceBlock()))
    places = [(f"{place}.requests", block.requests) for place, block in blocks]
    places += [(f"{place}.limits", block.limits) for place, block in blocks]
    for place, quantities in [*places, ("spec.overhead", wire.overhead)]:
        try:
            resources.exact_requests(quantities)
        except QuantityError:
            return f"{place}: "
    return ""


def _resource_spec(wire: _SharedSpec) -> PodSpec:
    """Computes the amounts of a spec. Raises QuantityError."""
    containers, inits = wire.containers or [], wire.init_containers or []
    parts = [_container_requests(c) for c in containers], [_container_requests(c) for c in inits]
    pod_level = _pod_level_requests(wire)
    requests = resources.pod_requests(*parts, pod_level, wire.overhead)
    # Upstream builds Fit's scorer without the pod-level switch: a pending pod is scored by its containers only.
    placed = scoring = resources.pod_requests(*parts, None, wire.overhead, defaults=resources.SCORING_DEFAULTS)
    of_containers = None
    if pod_level is not None:
        of_containers = resources.pod_requests(*parts, None, wire.overhead)
        defaults = resources.placed_scoring_defaults(requests, pod_level)
        placed = resources.pod_requests(*parts, pod_level, wire.overhead, defaults=defaults)
    scoring_cpu_milli, scoring_memory_bytes = _scoring_amounts(scoring)
    placed_cpu_milli, placed_memory_bytes = _scoring_amounts(placed)
    return PodSpec(
        scheduler_name=wire.scheduler_name,
        priority=wire.priority or 0,
        requests=resources.amounts(requests),
        container_requests=None if of_containers is None else resources.amounts(of_containers),
        extended=resources.extended_requests(*parts),
        container_count=len(containers),
        init_container_count=len(inits),
        scoring_cpu_milli=scoring_cpu_milli,
        scoring_memory_bytes=scoring_memory_bytes,
        placed_cpu_milli=placed_cpu_milli,
        placed_memory_bytes=placed_memory_bytes,
    )


def _container_requests(container: _Container, status: _ContainerStatus | None = None) -> ContainerRequests:
    block = container.resources
    has_status = status is not None and status.resources is not None
    return ContainerRequests(
        name=container.name,
        spec=block.requests if block else None,
        is_sidecar=container.restart_policy == "Always",
        actuated=status.resources.requests if status is not None and status.resources is not None else None,
        allocated=status.allocated_resources if status is not None else None,
        has_status=has_status,
    )


def _pod_level_requests(wire: _SharedSpec, status: _PodStatus | None = None) -> ContainerRequests | None:
    """Treats spec.resources as a container: it is resized in place in the same way."""
    if wire.resources is None or not wire.resources.requests:
        return None
    reported = status.resources if status is not None else None
    return ContainerRequests(
        name="",
        spec=wire.resources.requests,
        actuated=reported.requests if reported else None,
        allocated=status.allocated_resources if status is not None else None,
        has_status=reported is not None,
    )


def _scoring_amounts(requests: dict[str, int]) -> tuple[int, int]:
    """Returns milli-CPU and bytes of memory."""
    amounts = resources.amounts(requests)
    return amounts.get(CPU, 0), amounts.get(MEMORY, 0)


def _qos(wire: _SharedSpec) -> QosClass:
    empty = ResourceBlock()
    blocks = [c.resources or empty for c in (*(wire.containers or ()), *(wire.init_containers or ()))]
    return resources.qos_class(blocks, wire.resources)


def _required_features(wire: _SharedSpec) -> frozenset[str]:
    """Source: component-helpers nodedeclaredfeatures, InferForScheduling of each feature."""
    found = set()
    containers = (*(wire.containers or ()), *(wire.init_containers or ()))
    if any(rule.action == "RestartAllContainers" for c in containers for rule in c.restart_policy_rules or ()):
        found.add("RestartAllContainersOnContainerExits")
    if wire.host_network and wire.host_users is False:
        found.add("UserNamespacesHostNetworkSupport")
    return frozenset(found)


def _host_ports(containers: list[_Container], inits: list[_Container]) -> tuple[HostPort, ...]:
    """Returns ports of containers and sidecars (source: scheduler util GetHostPorts)."""
    holders = [*containers, *(c for c in inits if c.restart_policy == "Always")]
    return tuple(
        HostPort("" if p.host_ip == "0.0.0.0" else p.host_ip, p.protocol or "TCP", p.host_port)  # noqa: S104 - compared, not bound
        for c in holders
        for p in c.ports or ()
        if p.host_port > 0
    )


def _tolerations(wire: list[_Toleration] | None) -> tuple[Toleration, ...]:
    if not wire:
        return ()
    if len(wire) > TOLERATIONS_MAX:
        raise Refusal(f"spec.tolerations: {len(wire)} entries, more than the {TOLERATIONS_MAX} that are read")
    return tuple(Toleration(t.key, t.operator, t.value, t.effect) for t in wire)


def _affinity(wire: _SharedSpec) -> NodeAffinity:
    selector = tuple(Requirement(k, Operator.IN, (v,)) for k, v in sorted((wire.node_selector or {}).items()))
    if len(selector) > SELECTOR_VALUES_MAX:
        raise Refusal(f"spec.nodeSelector: {len(selector)} entries, more than the {SELECTOR_VALUES_MAX} that are read")
    affinity = wire.affinity.node_affinity if wire.affinity else None
    if affinity is None:
        return NodeAffinity(selector)
    path = "spec.affinity.nodeAffinity"
    required = affinity.required.node_selector_terms or [] if affinity.required else []
    preferred = affinity.preferred or []
    if len(required) + len(preferred) > AFFINITY_TERMS_MAX:
        count = len(required) + len(preferred)
        raise Refusal(f"{path}: {count} terms, more than the {AFFINITY_TERMS_MAX} that are read; merge some")
    return NodeAffinity(
        node_selector=selector,
        required=NodeSelector(tuple(compile_term(t, path) for t in required)) if affinity.required else None,
        preferred=tuple(PreferredTerm(p.weight, compile_term(p.preference, path)) for p in preferred),
    )


def _pod_affinity(wire: _SharedSpec) -> PodAffinity | None:
    return compile_pod_affinity(wire.affinity.pod_affinity, wire.affinity.pod_anti_affinity) if wire.affinity else None


def node_affinity(document: Mapping[str, Any]) -> tuple[NodeAffinity, tuple[str, ...]]:
    """Decodes a NodeAffinity object of a configuration file. Returns it, and the fields of its invalid terms.

    If the shape is wrong, raises Refusal with the field relative to the document.
    """
    try:
        wire = msgspec.convert(document, _NodeAffinity)
    except msgspec.ValidationError as error:
        reason, _, at = str(error).rstrip("`").partition(" - at `$")
        raise Refusal(f"{at}: {reason}") from error
    compiled = _affinity(_SharedSpec(affinity=_Affinity(node_affinity=wire)))
    required, preferred = (
        "requiredDuringSchedulingIgnoredDuringExecution",
        "preferredDuringSchedulingIgnoredDuringExecution",
    )
    terms = (
        [
            *((f".{required}.nodeSelectorTerms[{i}]", t) for i, t in enumerate(compiled.required.terms)),
        ]
        if compiled.required
        else []
    )
    terms += [(f".{preferred}[{i}].preference", p.term) for i, p in enumerate(compiled.preferred) if p.weight]
    return compiled, tuple(where for where, term in terms if not term.is_valid)


def _pod_group(wire: _SharedSpec) -> str:
    return (wire.scheduling_group.pod_group_name or "") if wire.scheduling_group else ""


def _unsupported(wire: _SharedSpec) -> tuple[str, ...]:
    found = []
    if wire.resource_claims:
        found.append("resource claims (DynamicResources)")
    return tuple(found)


def _is_ready(conditions: list[_Condition] | None) -> bool:
    for condition in conditions or ():
        if condition.type == "Ready":
            return condition.status == "True"
    return False


def _is_preempted(conditions: list[_Condition] | None) -> bool:
    """Source: kube-scheduler 1.36, plugins/defaultpreemption, podTerminatingByPreemption (without the deletion)."""
    for condition in conditions or ():
        if condition.type == "DisruptionTarget":
            return condition.status == "True" and condition.reason == "PreemptionByScheduler"
    return False


def _may_be_resizing(wire: _Pod) -> bool:
    if not wire.spec.node_name:
        return False
    statuses = (*(wire.status.container_statuses or ()), *(wire.status.init_container_statuses or ()))
    return wire.status.resources is not None or any(s.resources is not None for s in statuses)


def _held(wire: _Pod, spec: PodSpec) -> tuple[Requests | None, tuple[int, int] | None]:
    """Returns requests by status, for fit and for scoring, if they differ from the spec's (pods resized in place)."""
    status = wire.status
    by_name = {s.name: s for s in (*(status.container_statuses or ()), *(status.init_container_statuses or ()))}
    pending = next((c for c in status.conditions or () if c.type == "PodResizePending"), None)
    view = resources.StatusView(is_resize_infeasible=pending is not None and pending.reason == "Infeasible")
    parts = (
        [_container_requests(c, by_name.get(c.name)) for c in wire.spec.containers or ()],
        [_container_requests(c, by_name.get(c.name)) for c in wire.spec.init_containers or ()],
    )
    pod_level = _pod_level_requests(wire.spec, status)
    exact = resources.pod_requests(*parts, pod_level, wire.spec.overhead, status=view)
    defaults = resources.placed_scoring_defaults(exact, pod_level)
    placed = resources.pod_requests(*parts, pod_level, wire.spec.overhead, status=view, defaults=defaults)
    held, scoring = resources.amounts(exact), _scoring_amounts(placed)
    return (
        held if held != spec.requests else None,
        scoring if scoring != (spec.placed_cpu_milli, spec.placed_memory_bytes) else None,
    )


@lru_cache(ALLOCATABLES_KEPT)
def _allocatable(quantities: tuple[tuple[str, QuantityText], ...]) -> Requests:
    try:
        found = resources.exact(dict(quantities))
    except QuantityError as error:
        raise Refusal(f"status.allocatable: {error}") from error
    scaled = {n: milli_of_nano(v) if n == CPU else value_of_nano(v) for n, v in found.items()}
    for name, room in scaled.items():
        if not 0 <= room <= ALLOCATABLE_MAX:
            raise Refusal(f"status.allocatable[{name}]: {room} is not in 0..{ALLOCATABLE_MAX}; fix the node's capacity")
    scaled.setdefault(PODS, 0)
    return scaled
