"""NodeAffinity: node selector, required and preferred node affinity, and the affinity that the profile adds to all pods."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from multisched.framework.dependency import Dependency
from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.framework.node_view import Codes, Rows, Scores
from multisched.framework.normalize import ByLargest
from multisched.framework.plugin_args import Fields
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.framework.traits import Traits
from multisched.model.decode import node_affinity
from multisched.model.decode_selectors import Refusal
from multisched.model.objects import Node, Pod
from multisched.model.objects import NodeAffinity as Affinity
from multisched.model.selectors import NODE_NAME_FIELD, NodeSelector, Operator
from multisched.plugins.columns import zeros
from multisched.plugins.node_matching import NodeMatcher
from multisched.plugins.topology.preference_errors import unreadable

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_TERMS: Final = "nodeSelectorTerms"
_TERM_FIELDS: Final = ("matchExpressions", "matchFields")


class NodeAffinityArgs(msgspec.Struct, frozen=True):
    """`added_affinity`: its required terms are ANDed with those of each pod; its preferred terms are added to the pod's."""

    added_affinity: Affinity | None = None

    @classmethod
    def from_config(cls, document: Mapping[str, Any], path: str = "args") -> NodeAffinityArgs:
        """Reads the arguments from a configuration. Raises PluginArgsError."""
        with Fields(document, path, ("addedAffinity",)) as fields:
            return cls(_read_affinity(fields, "addedAffinity") if fields.has("addedAffinity") else None)


def _read_affinity(parent: Fields, name: str) -> Affinity | None:
    fields, at = parent.below(name, (_REQUIRED, _PREFERRED)), parent.at(name)
    terms = fields.below(_REQUIRED, (_TERMS,)).entries(_TERMS, _TERM_FIELDS) if fields.has(_REQUIRED) else []
    for entry in fields.entries(_PREFERRED, ("weight", "preference")):
        terms += [entry.below("preference", _TERM_FIELDS)] if entry.has("preference") else []
    for term in terms:
        for expressions in _TERM_FIELDS:
            term.entries(expressions, ("key", "operator", "values"))
    try:
        affinity, not_terms = node_affinity(parent.value(name))
    except Refusal as error:
        where, _, reason = str(error).partition(": ")
        fields.refuse_at(f"{at}{where}", reason)
        return None
    for where in not_terms:
        reason = "is not a valid node selector term; check its operators, the number of values and their characters"
        fields.refuse_at(f"{at}{where}", reason)
    return affinity


class NodeAffinity:
    """Source: kube-scheduler 1.36, plugins/nodeaffinity/node_affinity.go."""

    name = "NodeAffinity"
    depends_on = Dependency.NODE
    traits = Traits(signs_spec_only=True, normalizer=ByLargest())

    def __init__(self, args: NodeAffinityArgs | None = None) -> None:
        added = args.added_affinity if args else None
        self._enforced = added.required if added else None
        self._added = added.preferred if added else ()
        self.reasons = ReasonTable(self.name)
        unresolvable = Code.UNSCHEDULABLE_AND_UNRESOLVABLE
        self._not_enforced = self.reasons.code(unresolvable, "node(s) didn't match scheduler-enforced node affinity")
        self._no_match = self.reasons.code(unresolvable, "node(s) didn't match Pod's node affinity/selector")

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        """Skips pods without any rule; if every term names its nodes, restricts the cycle to them."""
        affinity = pod.spec.affinity
        if affinity.required is None and self._enforced is None and not affinity.node_selector:
            return PreFilterResult(SKIP)
        names = _named_nodes(affinity.required)
        if names is not None and not names:
            return PreFilterResult(Status.unresolvable("pod affinity terms conflict").by(self.name))
        return PreFilterResult(nodes=names)

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: refuses rows that do not match the added affinity or the pod's own."""
        if len(rows) == 1:  # typical of pods of a DaemonSet
            return np.array([self._code(pod, cycle.nodes.node(rows.item()))], np.uint8)
        match = NodeMatcher(cycle.nodes, rows)
        codes = zeros(rows)
        affinity = pod.spec.affinity
        own = match.all_of(affinity.node_selector)
        if affinity.required is not None:
            own = own & match.any_of(affinity.required.terms)
        codes[~own] = self._no_match
        if self._enforced is not None:
            codes[~match.any_of(self._enforced.terms)] = self._not_enforced
        return codes

    def _code(self, pod: Pod, node: Node) -> int:
        """Returns the code of `filter` for one node."""
        if self._enforced is not None and not self._enforced.matches(node.labels, node.name):
            return self._not_enforced
        return 0 if _is_match(pod, node) else self._no_match

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status:
        """Skips pods without preferences. Returns an error for a preference that cannot be parsed, as upstream."""
        preferred = pod.spec.affinity.preferred
        if not preferred and not self._added:
            return SKIP
        why = unreadable(preferred)
        return Status.error(why).by(self.name) if why else SUCCESS

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[rows]: the sum of the weights of the matching preferences."""
        match = NodeMatcher(cycle.nodes, rows)
        total = np.zeros(len(rows), np.int64)
        for preference in (*self._added, *pod.spec.affinity.preferred):
            if preference.weight:
                total += match.term(preference.term) * np.int64(preference.weight)
        return total

    def sign(self, pod: Pod) -> Hashable:
        return pod.spec.affinity

    def events_to_register(self) -> Sequence[EventRegistration]:
        event = ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL, "NodeAddOrLabel")
        return (EventRegistration(event, self._after_node_change),)

    def _after_node_change(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Queues the pod if the node matches now and did not match before."""
        if not isinstance(new, Node):
            return Hint.SKIP
        if self._enforced is not None and not self._enforced.matches(new.labels, new.name):
            return Hint.SKIP
        if not _is_match(pod, new) or (isinstance(old, Node) and self._is_enough(pod, old)):
            return Hint.SKIP
        return Hint.QUEUE

    def _is_enough(self, pod: Pod, node: Node) -> bool:
        """Reports whether the node matches. (Upstream ignores the added affinity for the old node, and so misses some changes.)"""
        meets_added = self._enforced is None or self._enforced.matches(node.labels, node.name)
        return meets_added and _is_match(pod, node)


def _is_match(pod: Pod, node: Node) -> bool:
    return pod.spec.affinity.matches(node.labels, node.name)


def _named_nodes(required: NodeSelector | None) -> frozenset[str] | None:
    """Returns the nodes that the terms allow by metadata.name; None if there are no terms, or if a term names no node."""
    if required is None or not required.terms:
        return None
    allowed: frozenset[str] = frozenset()
    for term in required.terms:
        names: frozenset[str] | None = None
        for field in term.fields:
            if field.key == NODE_NAME_FIELD and field.operator is Operator.IN:
                names = frozenset(field.values) if names is None else names & frozenset(field.values)
        if names is None:
            return None
        allowed |= names
    return allowed
