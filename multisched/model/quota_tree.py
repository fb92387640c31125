"""Quota trees: what each team is guaranteed, and how much it may borrow. Read from any document, with all its problems.

A tree with a problem is never put in force; its reader keeps the last one without problems. Source of the rules:
ACK's ElasticQuotaTree (`scheduling.sigs.k8s.io/v1beta1`). `model/quotas` reads other APIs as such trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from multisched.model.near_names import did_you_mean
from multisched.model.objects import CPU, PODS, Requests
from multisched.model.quantity import ONE_NANO, QuantityError, bytes_text, milli_of_nano, parse_nano, value_of_nano
from multisched.model.resources import HUGEPAGES_PREFIX
from multisched.model.selectors import is_dns_label, is_qualified_name

NODES_MAX: Final = 10_000
"""Most nodes of one tree."""
DEPTH_MAX: Final = 32
NAMESPACES_MAX: Final = 50_000
RESOURCES_MAX: Final = 64
"""Most resources that one node of a tree names."""
PROBLEMS_MAX: Final = 100
"""Most problems of one tree that are listed; others are left out."""

WEIGHT_ATTRIBUTE: Final = "multisched.io/weight"
"""Attribute of a node: its weight among its siblings when idle resources are shared; default: the node's max."""
GUARANTEE_ATTRIBUTE: Final = "multisched.io/guarantee"
"""Attribute of a node: the part of its min that is never lent, `all` or for example `cpu=2,memory=4Gi`."""
ALL: Final = "all"
EVERYTHING: Final = frozenset[str]()
"""Unreadable resources of a node without any."""
MAX_JOBS: Final = "kube-queue/max-jobs"
"""A key of `max` that bounds jobs in ACK's queue and is not a resource of pods."""

BYTE_RESOURCES: Final = frozenset({"memory", "ephemeral-storage"})
NATIVE_RESOURCES: Final = (CPU, "memory", "ephemeral-storage", PODS)
NATIVE_PREFIXES: Final = ("hugepages-", "attachable-volumes-")

SHOWN_MAX: Final = 63
"""Longest part of a name in a message, in characters: names are written by users."""

NO_LEAVES: Final[Mapping[str, int]] = {}
NO_NAMESPACES: Final[Mapping[str, frozenset[str]]] = {}

ReportProblem = Callable[[str, str, str], None]
"""Is called with each problem: path, text, fix."""


class TreeProblem(msgspec.Struct, frozen=True):
    """One violated rule of a tree."""

    path: str
    """The node, for example `root.a.team-1`, followed by the field if there is one: `root.a.min.cpu`."""
    text: str
    fix: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}; {self.fix}"


class QuotaNode(msgspec.Struct, frozen=True):
    """One level of a tree."""

    name: str
    path: str
    """Names from the root, joined by dots: `root.a`. If a name begins with its parent's path, as in ACK's manual, it is the path."""
    parent: int
    """Position among the tree's nodes; -1 for the root."""
    children: tuple[int, ...]
    min: Requests
    """Resource -> guaranteed amount, in the units of `quota_amount`; 0 if missing."""
    max: Requests
    """Resource -> what its pods may hold together; unbounded if missing."""
    namespaces: tuple[str, ...] = ()
    """Only leaves have namespaces."""
    weight: int | None = None
    """Weight among its siblings for all resources; None: its max."""
    weights: Requests | None = None
    """Weight by resource, for APIs that have it; a missing resource has the weight 0."""
    guarantee: Requests = {}
    """Resource -> the part of its min that is never lent."""

    def weight_for(self, resource: str, otherwise: int) -> int:
        """Returns the weight; `otherwise` if neither weight nor max is set. In the units of max: 5 weighs as much as 5 CPUs."""
        if self.weights is not None:
            return self.weights.get(resource, 0)
        if self.weight is not None:
            return self.weight * 1000 if is_in_thousandths(resource) else self.weight
        return self.max.get(resource, otherwise)


class QuotaTree(msgspec.Struct, frozen=True):
    """A tree without problems."""

    nodes: tuple[QuotaNode, ...]
    """Parents before children; the root is the first."""
    leaf_of: Mapping[str, int]
    """Namespace -> position of its leaf."""
    paths: tuple[tuple[int, ...], ...]
    """For each position: the node itself, its parent and so on up to the root."""
    pod_label: str = ""
    """Key of a pod label that names its leaf and takes precedence over its namespace; empty: none."""
    leaf_named: Mapping[str, int] = {}
    """Value of that label -> position of the leaf."""
    named_in: Mapping[str, frozenset[str]] = {}
    """Value of that label -> namespaces whose pods may use it: those that the leaf lists."""

    @staticmethod
    def of(
        nodes: Sequence[QuotaNode],
        pod_label: str = "",
        leaf_named: Mapping[str, int] = NO_LEAVES,
        named_in: Mapping[str, frozenset[str]] = NO_NAMESPACES,
    ) -> QuotaTree:
        """Builds a tree. `nodes`: with parents and children set, parents first."""
        paths: list[tuple[int, ...]] = []
        for at, node in enumerate(nodes):
            paths.append((at, *paths[node.parent]) if node.parent >= 0 else (at,))
        leaf_of = {namespace: at for at, node in enumerate(nodes) for namespace in node.namespaces}
        return QuotaTree(tuple(nodes), leaf_of, tuple(paths), pod_label, leaf_named, named_in)

    @property
    def resources(self) -> frozenset[str]:
        """Every resource that some node names."""
        return frozenset(name for node in self.nodes for name in (*node.min, *node.max))

    def leaves(self) -> Iterator[int]:
        return (at for at, node in enumerate(self.nodes) if not node.children)


def read_tree(root: Any) -> tuple[QuotaTree | None, tuple[TreeProblem, ...]]:
    """Reads the tree in a document's `spec.root`; None if it has problems, which are all returned."""
    reader = _Reader()
    reader.read(root, -1, "", 1, "spec.root")
    if reader.nodes:
        _check_levels(reader)
    if reader.problems:
        return None, tuple(reader.problems[:PROBLEMS_MAX])
    return QuotaTree.of(reader.nodes), ()


class _Reader:
    """Reads one document, and collects its problems."""

    def __init__(self) -> None:
        self.nodes: list[QuotaNode] = []
        self.problems: list[TreeProblem] = []
        self._names: dict[str, str] = {}
        self._namespaces: dict[str, str] = {}
        self.unread: dict[int, set[str]] = {}
        """Position of a node -> its resources with an unreadable amount; ALL means any. They are not compared."""
        self._amounts: dict[tuple[tuple[str, int], ...], Requests] = {}
        """Nodes with equal amounts share them: a tree has far fewer distinct amounts than nodes."""
        self._written: dict[tuple[tuple[str, str | int], ...], Requests] = {}
        """Amounts as users have written them -> the parsed amounts, if all could be parsed."""

    def is_read(self, resource: str, *places: int) -> bool:
        """Reports whether all amounts of the resource at these nodes could be read."""
        return all(self.unread.get(at, EVERYTHING).isdisjoint((resource, ALL)) for at in places)

    def problem(self, path: str, text: str, fix: str) -> None:
        if len(self.problems) <= PROBLEMS_MAX:
            self.problems.append(TreeProblem(path, text, fix))

    def read(self, document: Any, parent: int, above: str, depth: int, place: str) -> int:
        """Returns the position of the node, whose children follow it; -1 if it cannot be read at all.

        `place`: path of the field, used until the node's name is known.
        """
        if not isinstance(document, dict):
            self.problem(place, "a node of the tree is not an object", "write name, min and max")
            return -1
        if len(self.nodes) >= NODES_MAX or depth > DEPTH_MAX:
            self.problem(place, f"the tree has over {NODES_MAX} nodes or {DEPTH_MAX} levels", "make it smaller")
            return -1
        name, path = self._name(document.get("name"), above, place)
        at = len(self.nodes)
        self.nodes.append(QuotaNode(name, path, parent, (), {}, {}))
        children = self._children(document.get("children"), at, path, depth)
        least = self._read_amounts(document.get("min"), f"{path}.min", at)
        self.nodes[at] = QuotaNode(
            name,
            path,
            parent,
            children,
            least,
            self._read_amounts(document.get("max"), f"{path}.max", at),
            self._leaf_namespaces(document.get("namespaces"), path, is_leaf=not children),
            self._weight(document.get("attributes"), path),
            guarantee=self._guarantee(document.get("attributes"), path, least),
        )
        return at

    def _read_amounts(self, amounts: Any, path: str, at: int) -> Requests:
        key = None
        if isinstance(amounts, dict) and all(type(one) in (str, int) for one in amounts.values()):
            key = tuple(amounts.items())
            known = self._written.get(key)
            if known is not None:
                return known
        found = read_amounts(amounts, path, self.problem)
        missing = set[str]()
        if amounts is not None:
            missing = {ALL} if not isinstance(amounts, dict) else set(map(str, amounts)) - found.keys() - {MAX_JOBS}
        found = self._amounts.setdefault(tuple(found.items()), found)
        if missing:
            self.unread.setdefault(at, set()).update(missing)
        elif key is not None:
            self._written[key] = found
        return found

    def _name(self, name: Any, above: str, place: str) -> tuple[str, str]:
        """Returns the name and the path. For a node without a name, the path is `place`."""
        if not isinstance(name, str) or not name:
            what = "it has no name" if name in (None, "") else f"{_shown(name)} is not a name"
            self.problem(f"{place}.name", what, "write a name")
            return "?", place
        path = child_path(above, name)
        if name in self._names:
            what = f"{self._names[name]} has the same name {_shown(name)}"
            self.problem(f"{place}.name", what, "give each node a unique name")
        self._names.setdefault(name, path)
        return name, path

    def _children(self, documents: Any, at: int, path: str, depth: int) -> tuple[int, ...]:
        if documents is None:
            return ()
        if not isinstance(documents, list):
            self.problem(f"{path}.children", "not a list", "write a list of nodes")
            return ()
        found = [self.read(one, at, path, depth + 1, f"{path}.children[{i}]") for i, one in enumerate(documents)]
        return tuple(child for child in found if child >= 0)

    def _leaf_namespaces(self, names: Any, path: str, *, is_leaf: bool) -> tuple[str, ...]:
        if not names:
            return ()
        if not isinstance(names, list) or not all(isinstance(one, str) and one for one in names):
            self.problem(f"{path}.namespaces", "not a list of names", "write a list of namespaces")
            return ()
        if not is_leaf:
            self.problem(f"{path}.namespaces", "only leaves have namespaces", "move them to a child of their own")
        if len(self._namespaces) + len(names) > NAMESPACES_MAX:
            self.problem(f"{path}.namespaces", f"the tree has over {NAMESPACES_MAX} namespaces", "name fewer")
            return ()
        for name in names:
            check_namespace(name, f"{path}.namespaces", self.problem)
            if name in self._namespaces:
                other = self._namespaces[name]
                self.problem(f"{path}.namespaces", f"namespace {_shown(name)} is already in {other}", "name it once")
            self._namespaces.setdefault(name, path)
        return tuple(names)

    def _weight(self, attributes: Any, path: str) -> int | None:
        text = attributes.get(WEIGHT_ATTRIBUTE) if isinstance(attributes, dict) else None
        if text is None:
            return None
        if not str(text).isdecimal() or len(str(text)) > 9:
            self.problem(
                f"{path}.attributes[{WEIGHT_ATTRIBUTE}]",
                f"{_shown(text)} is not a weight",
                "write a whole number, 0 or more",
            )
            return None
        return int(str(text))

    def _guarantee(self, attributes: Any, path: str, least: Requests) -> Requests:
        text = attributes.get(GUARANTEE_ATTRIBUTE) if isinstance(attributes, dict) else None
        if text is None:
            return {}
        if text == ALL:
            return least
        place = f"{path}.attributes[{GUARANTEE_ATTRIBUTE}]"
        parts = [part.partition("=") for part in str(text).split(",")]
        if not all(equals for _, equals, _ in parts):
            self.problem(place, f"{_shown(text)} is not a guarantee", "write all, or for example cpu=2,memory=4Gi")
            return {}
        found = read_amounts({name.strip(): amount.strip() for name, _, amount in parts}, place, self.problem)
        for resource, amount in found.items():
            if amount > least.get(resource, 0):
                what = (
                    f"{shown_amount(resource, amount)} is over its min {shown_amount(resource, least.get(resource, 0))}"
                )
                self.problem(f"{place}.{resource}", what, f"lower it, or raise min of {path}")
        return found


def named_nodes(document: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str, tuple[str | int, ...]]]:
    """Yields each readable node of a tree's document: the node, its path by names, and its path by fields.

    Parents come before children. A node without a name is identified by its place, as in problems.
    """
    spec = document.get("spec")
    root = spec.get("root") if isinstance(spec, dict) else None
    waiting: list[tuple[Any, str, tuple[str | int, ...], str]] = [(root, "", ("spec", "root"), "spec.root")]
    seen = 0
    while waiting and seen < NODES_MAX:
        node, above, fields, place = waiting.pop()
        if not isinstance(node, dict) or len(fields) > 2 * (DEPTH_MAX + 1):
            continue
        seen += 1
        name = node.get("name")
        path = child_path(above, name) if isinstance(name, str) and name else place
        yield node, path, fields
        children = node.get("children")
        below = list(enumerate(children if isinstance(children, list) else ()))
        waiting += [(one, path, (*fields, "children", at), f"{path}.children[{at}]") for at, one in reversed(below)]


def child_path(above: str, name: str) -> str:
    """See `QuotaNode.path`. `above`: empty for the root."""
    return name if not above or name.startswith(f"{above}.") else f"{above}.{name}"


def check_namespace(name: str, path: str, report: ReportProblem) -> None:
    """Reports a name that is not a DNS label: no namespace can have it."""
    if not is_dns_label(name):
        report(
            path, f"{_shown(name)} is not the name of a namespace", "write lower case letters, digits and -, at most 63"
        )


def read_amounts(amounts: Any, path: str, report: ReportProblem, *, are_weights: bool = False) -> Requests:
    """Returns resource -> amount of a map written by users. Reports and leaves out what cannot be read.

    `are_weights`: the amounts are weights, which may be fractions of a resource's smallest unit.
    """
    if amounts is None:
        return {}
    if not isinstance(amounts, dict) or len(amounts) > RESOURCES_MAX:
        report(path, f"not a map of at most {RESOURCES_MAX} resources", "write for example cpu: 40")
        return {}
    found: dict[str, int] = {}
    for resource, text in amounts.items():
        if resource == MAX_JOBS:
            continue
        if not is_qualified_name(resource):
            report(f"{path}.{_shown(resource)}", "not the name of a resource", "write cpu, memory or DOMAIN/NAME")
            continue
        if not _is_known(resource):
            near = did_you_mean(resource, NATIVE_RESOURCES, "write cpu, memory or DOMAIN/NAME")
            report(f"{path}.{_shown(resource)}", "no pod can ask for such a resource", near)
            continue
        try:
            nano = parse_nano(text) if isinstance(text, str | int | float) else None
        except QuantityError:
            nano = None
        if nano is None or nano < 0 or isinstance(text, bool):
            report(f"{path}.{resource}", f"{_shown(text)} is not an amount", "write for example 500m, 40 or 64Gi")
            continue
        if not are_weights and nano % _least_nano(resource):
            report(f"{path}.{resource}", *_too_fine(resource, text))
            continue
        found[resource] = milli_of_nano(nano) if is_in_thousandths(resource) else value_of_nano(nano)
    return found


def is_in_thousandths(resource: str) -> bool:
    """Reports whether quotas count the resource in thousandths: CPU, and devices such as nvidia.com/gpu, which pods may share."""
    return resource == CPU or "/" in resource


def quota_amount(resource: str, amount: int) -> int:
    """Returns an amount of `Pod.requests` or `Node.allocatable` in the units of quotas.

    Those are thousandths of a CPU or a device, bytes, and counts. Requests already have CPU in thousandths, and devices as counts.
    """
    return amount * 1000 if "/" in resource else amount


def _least_nano(resource: str) -> int:
    """Returns the smallest amount that a quota can have, in nano-units."""
    if resource == PODS:
        return ONE_NANO
    return ONE_NANO // 1000 if "/" in resource else 1


def _too_fine(resource: str, text: object) -> tuple[str, str]:
    if resource == PODS:
        return f"{_shown(text)} is not a whole number", "pods are whole; write for example 4"
    return f"{_shown(text)} is finer than a thousandth", "write for example 4, or 500m for half a device"


def _is_known(resource: str) -> bool:
    """Reports whether pods can request the resource; false for a name without a domain that Kubernetes does not define."""
    return "/" in resource or resource in NATIVE_RESOURCES or resource.startswith(NATIVE_PREFIXES)


def _check_levels(reader: _Reader) -> None:
    """Checks that min is within max, children are within their parent, and min and max of the root are equal."""
    nodes = reader.nodes
    for at, node in enumerate(nodes):
        for resource, least in node.min.items():
            most = node.max.get(resource)
            if most is not None and least > most and reader.is_read(resource, at):
                what = f"min {shown_amount(resource, least)} is over max {shown_amount(resource, most)}"
                reader.problem(f"{node.path}.min.{resource}", what, f"lower min or raise max of {node.path}")
        if at:
            _check_child(reader, at, nodes[node.parent])
        _check_children(reader, at)
    root = nodes[0]
    for resource in {**root.min, **root.max}:
        sure, bound = root.min.get(resource), root.max.get(resource)
        if sure != bound and (sure is None or bound is None or sure < bound) and reader.is_read(resource, 0):
            what = f"min {_shown_or_none(resource, sure)} and max {_shown_or_none(resource, bound)} of the root differ"
            reader.problem(f"{root.path}.{resource}", what, "write the same: the root has no siblings that lend to it")


def _check_child(reader: _Reader, at: int, parent: QuotaNode) -> None:
    node = reader.nodes[at]
    for resource, most in node.max.items():
        bound = parent.max.get(resource)
        if bound is not None and most > bound and reader.is_read(resource, at, node.parent):
            what = f"max {shown_amount(resource, most)} is over {shown_amount(resource, bound)} of {parent.path}"
            reader.problem(f"{node.path}.max.{resource}", what, f"lower it, or raise max of {parent.path}")


def _check_children(reader: _Reader, at: int) -> None:
    node, sums = reader.nodes[at], dict[str, int]()
    for child in node.children:
        for resource, least in reader.nodes[child].min.items():
            sums[resource] = sums.get(resource, 0) + least
    for resource, total in sums.items():
        own = node.min.get(resource, 0)
        if total > own and reader.is_read(resource, at):
            what = f"min of its children is {shown_amount(resource, total)} in all, over its own {shown_amount(resource, own)}"
            reader.problem(
                f"{node.path}.min.{resource}", what, f"raise min of {node.path}, or lower that of its children"
            )


def shown_amount(resource: str, amount: int) -> str:
    """Formats an amount in the units of `quota_amount`.

    CPUs and devices are shown in whole units if possible, else in thousandths; bytes in the largest unit that divides them.
    """
    if is_in_thousandths(resource):
        if amount % 1000 or resource == CPU:
            return f"{amount // 1000}" if amount % 1000 == 0 else f"{amount}m"
        amount //= 1000
    is_in_bytes = resource in BYTE_RESOURCES or resource.startswith(HUGEPAGES_PREFIX)
    return bytes_text(amount) if is_in_bytes else str(amount)


def _shown_or_none(resource: str, amount: int | None) -> str:
    return "(none)" if amount is None else shown_amount(resource, amount)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return repr(text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}...")
