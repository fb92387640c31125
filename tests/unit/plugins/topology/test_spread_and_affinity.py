"""PodTopologySpread and InterPodAffinity by their rules, one at a time; families of whole problems are in tests/conformance."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from multisched.framework import pod_demands
from multisched.framework.events import Hint
from multisched.framework.points import CycleView
from multisched.framework.runner import Runner
from multisched.framework.status import Code, Status
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.plugins.topology.inter_pod_affinity import InterPodAffinity
from multisched.plugins.topology.inter_pod_affinity_args import InterPodAffinityArgs
from multisched.plugins.topology.natural_log import natural_log
from multisched.plugins.topology.pod_topology_spread import PodTopologySpread
from multisched.plugins.topology.pod_topology_spread_args import DefaultConstraint, PodTopologySpreadArgs
from multisched.state.overlay import OverlayCycle
from multisched.testing.builders import Document, decode_node, decode_pod, node_document, pod_document
from tests.unit.plugins.scenes import Scene, put

REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
UNRESOLVABLE, UNSCHEDULABLE = Code.UNSCHEDULABLE_AND_UNRESOLVABLE, Code.UNSCHEDULABLE
SKEWED = (UNSCHEDULABLE, ("node(s) didn't match pod topology spread constraints",))
NO_LABEL = (UNRESOLVABLE, ("node(s) didn't match pod topology spread constraints (missing required label)",))
NOT_NEAR = (UNRESOLVABLE, ("node(s) didn't match pod affinity rules",))
NOT_FAR = (UNSCHEDULABLE, ("node(s) didn't match pod anti-affinity rules",))
UNWANTED = (UNSCHEDULABLE, ("node(s) didn't satisfy existing pods anti-affinity rules",))
WEB = {"matchLabels": {"app": "web"}}


def node(name: str, zone: str = "", **fields: Any) -> Document:
    labels = {HOST: name} | ({ZONE: zone} if zone else {})
    return node_document(name, labels=labels, **fields)


def pod(name: str, *, on: str = "", app: str = "web", namespace: str = "default", **spec: Any) -> Document:
    deleted_at = spec.pop("deleted_at", None)
    metadata = {"deletionTimestamp": deleted_at} if deleted_at else {}
    return pod_document(name, node=on, namespace=namespace, labels={"app": app}, metadata=metadata, **spec)


def spread(max_skew: int = 1, key: str = ZONE, *, hard: bool = True, **fields: Any) -> Document:
    action = "DoNotSchedule" if hard else "ScheduleAnyway"
    return {"maxSkew": max_skew, "topologyKey": key, "whenUnsatisfiable": action, "labelSelector": WEB, **fields}


def term(key: str = ZONE, **fields: Any) -> Document:
    return {"topologyKey": key, "labelSelector": WEB, **fields}


def near(*terms: Document) -> Document:
    return {"podAffinity": {REQUIRED: list(terms)}}


def far(*terms: Document) -> Document:
    return {"podAntiAffinity": {REQUIRED: list(terms)}}


def liking(weight: int, one: Document) -> Document:
    return {"podAffinity": {PREFERRED: [{"weight": weight, "podAffinityTerm": one}]}}


def spreading(scene: Scene, args: PodTopologySpreadArgs | None = None) -> PodTopologySpread:
    return PodTopologySpread(args or PodTopologySpreadArgs(), scene.context())


def relating(scene: Scene, **args: Any) -> InterPodAffinity:
    return InterPodAffinity(InterPodAffinityArgs(**args), scene.context())


def scored(scene: Scene, plugin: PodTopologySpread | InterPodAffinity) -> tuple[dict[str, int], dict[str, int]] | None:
    """(raw, normalised) by node over all nodes; None if PreScore skips the pod."""
    view, rows = scene.view(), scene.rows(scene.names)
    if plugin.pre_score(view, scene.pod, rows).code is Code.SKIP:
        return None
    raw = plugin.score(view, scene.pod, rows)
    final = plugin.normalize_score(view, scene.pod, raw)
    names = [scene.table.node(int(row)).name for row in rows]
    return dict(zip(names, raw.tolist(), strict=True)), dict(zip(names, final.tolist(), strict=True))


# -- the logarithm -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "bits"),
    [
        (2, 0x3FE62E42FEFA39EF),
        (3, 0x3FF193EA7AAD030A),
        (12, 0x4003E116BCD39E7D),
        (100, 0x40126BB1BBB55516),
        (5002, 0x40210901F6DC84B9),
    ],
)
def test_logarithm_equals_that_of_go_bit_by_bit(number: int, bits: int) -> None:
    assert struct.unpack("<Q", struct.pack("<d", natural_log(number))) == (bits,)


# -- PodTopologySpread: Filter -----------------------------------------------------------------------------------------


def test_max_skew_limits_the_pods_per_zone() -> None:
    placed = [pod(f"p{n}", on=on) for n, on in enumerate(("a", "a", "b"))]
    scene = Scene([node("a", "x"), node("b", "y"), node("c")], placed, pod("new", topologySpreadConstraints=[spread()]))
    assert scene.statuses(spreading(scene)) == {"a": SKEWED, "b": None, "c": NO_LABEL}


def test_too_few_domains_count_the_global_minimum_as_zero() -> None:
    placed = [pod(f"p{n}", on=on) for n, on in enumerate(("a", "b"))]
    nodes = [node("a", "x"), node("b", "y")]
    for domains, expected in ((2, None), (3, SKEWED)):
        scene = Scene(nodes, placed, pod("new", topologySpreadConstraints=[spread(minDomains=domains)]))
        assert scene.statuses(spreading(scene)) == {"a": expected, "b": expected}


def test_deleting_pods_and_other_namespaces_do_not_count() -> None:
    placed = [pod("p0", on="a", deleted_at="2026-01-01T00:00:00Z"), pod("p1", on="a", namespace="other")]
    scene = Scene([node("a", "x"), node("b", "y")], placed, pod("new", topologySpreadConstraints=[spread()]))
    assert scene.statuses(spreading(scene)) == {"a": None, "b": None}


def test_empty_selector_counts_only_the_new_pod() -> None:
    placed = [pod(f"p{n}", on="a") for n in range(5)]
    constraint = spread(labelSelector={})
    scene = Scene([node("a", "x"), node("b", "y")], placed, pod("new", topologySpreadConstraints=[constraint]))
    assert scene.statuses(spreading(scene)) == {"a": None, "b": None}


@pytest.mark.parametrize(
    ("policy", "reaches"),
    [
        ({}, True),
        ({"nodeAffinityPolicy": "Ignore"}, False),
        ({"nodeTaintsPolicy": "Honor"}, True),
        ({"nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor"}, True),
    ],
)
def test_nodes_excluded_by_a_policy_are_no_domains(policy: dict[str, Any], reaches: bool) -> None:
    """The empty zone z is out of the pod's reach by its selector, and tainted: counted in, it blocks the others."""
    taints = [{"key": "t", "effect": "NoSchedule"}]
    nodes = [
        node_document("a", labels={ZONE: "x", "mine": "yes"}),
        node_document("b", labels={ZONE: "z"}, taints=taints),
    ]
    waiting = pod("new", topologySpreadConstraints=[spread(**policy)], nodeSelector={"mine": "yes"})
    scene = Scene(nodes, [pod("p", on="a")], waiting)
    assert scene.statuses(spreading(scene))["a"] == (None if reaches else SKEWED)


def test_match_label_keys_count_only_pods_of_the_same_revision() -> None:
    placed = [pod(f"p{n}", on="a") for n in range(2)]
    for document in placed:
        document["metadata"]["labels"]["rev"] = "old"
    waiting = pod("new", topologySpreadConstraints=[spread(matchLabelKeys=["rev", "absent"])])
    waiting["metadata"]["labels"]["rev"] = "new"
    scene = Scene([node("a", "x"), node("b", "y")], placed, waiting)
    assert scene.statuses(spreading(scene)) == {"a": None, "b": None}


def test_rows_of_other_domains_are_not_spread_over() -> None:
    scene = Scene(
        [node("a", "x"), node("b", "y")], [pod("p", on="a")], pod("new", topologySpreadConstraints=[spread()])
    )
    plugin, rows = spreading(scene), scene.rows(["a"])
    view = CycleView(scene.table, scene.view().state, places=rows)
    assert plugin.pre_filter(view, scene.pod).status.is_success
    assert plugin.filter(view, scene.pod, rows).tolist() == [0]


# -- PodTopologySpread: Score ------------------------------------------------------------------------------------------


def test_raw_spread_score_is_pods_times_log_of_domains_rounded() -> None:
    placed = [pod(f"p{n}", on=on) for n, on in enumerate(("a", "a", "a", "b"))]
    waiting = pod("new", topologySpreadConstraints=[spread(2, hard=False)])
    scene = Scene([node("a", "x"), node("b", "y"), node("c")], placed, waiting)
    # Two zones: ln 4 = 1.386; three pods and one, each plus maxSkew - 1. c lacks the key, and so gets nothing.
    assert scored(scene, spreading(scene)) == ({"a": 5, "b": 2, "c": -1}, {"a": 40, "b": 100, "c": 0})


def test_all_rows_score_best_without_pods_and_skew() -> None:
    waiting = pod("new", topologySpreadConstraints=[spread(1, hard=False)])
    scene = Scene([node("a", "x"), node("b")], [], waiting)
    assert scored(scene, spreading(scene)) == ({"a": 0, "b": -1}, {"a": 100, "b": 0})


def test_service_pods_are_spread_by_default_with_hosts_for_zoneless_rows() -> None:
    scene = Scene([node("a", "x"), node("b")], [pod("p", on="b")], pod("new"))
    plugin = spreading(scene)
    assert plugin.sign(scene.pod) == ()
    assert plugin.cache_key(scene.view(), scene.pod) is None
    service = {"metadata": {"name": "s", "namespace": "default"}, "spec": {"selector": {"app": "web"}}}
    put(scene.objects, ObjectKind.SERVICE, service)

    # Hosts: two rows, ln 4. Zones: x, and rows without one, which are not credited for it: 0 + 2 + 4, and ln 4 + 2.
    assert scored(scene, plugin) == ({"a": 6, "b": 3}, {"a": 50, "b": 100})
    assert plugin.pre_filter(scene.view(), scene.pod).status.code is Code.SKIP


def test_empty_zone_label_and_missing_label_are_one_default_domain() -> None:
    """It is credited for that domain, and they are scored by their hosts alone."""
    empty = node_document("b", labels={HOST: "b", ZONE: ""})
    scene = Scene([node("a", "x"), empty, node("c")], [pod("p", on="b"), pod("q", on="c")], pod("new"))
    service = {"metadata": {"name": "s", "namespace": "default"}, "spec": {"selector": {"app": "web"}}}
    put(scene.objects, ObjectKind.SERVICE, service)
    found = scored(scene, spreading(scene))
    assert found is not None
    # Hosts: three, ln 5 = 1.609, plus 2. Zones: x and the empty one, ln 4 = 1.386, plus 4; two pods in the empty one.
    assert found[0] == {"a": 6, "b": 10, "c": 4}


def test_default_spreading_follows_current_services() -> None:
    """What was counted for a class of pods is not followed up once another rule counts."""
    waiting = pod("new")
    waiting["metadata"]["labels"]["tier"] = "front"
    scene = Scene([node("a", "x"), node("b", "y")], [pod("p", on="a")], waiting)
    rule = DefaultConstraint(1, ZONE, "DoNotSchedule")
    plugin, view = spreading(scene, PodTopologySpreadArgs((rule,), False)), scene.view()
    verdicts = []
    for selector in ({"app": "web"}, {"app": "web", "tier": "front"}, {"app": "web"}):
        service = {"metadata": {"name": "s", "namespace": "default"}, "spec": {"selector": selector}}
        put(scene.objects, ObjectKind.SERVICE, service)
        assert plugin.pre_filter(view, scene.pod).status.is_success
        verdicts.append(plugin.filter(view, scene.pod, scene.rows(scene.names)).astype(bool).tolist())
    assert verdicts == [[True, False], [False, False], [True, False]]


@pytest.mark.parametrize(("min_domains", "verdict"), [(None, None), (1, None), (2, SKEWED)])
def test_default_constraint_has_one_min_domain(min_domains: int | None, verdict: Any) -> None:
    scene = Scene([node("a", "x")], [pod("p", on="a")], pod("new"))
    rule = DefaultConstraint(1, ZONE, "DoNotSchedule", min_domains=min_domains)
    service = {"metadata": {"name": "s", "namespace": "default"}, "spec": {"selector": {"app": "web"}}}
    put(scene.objects, ObjectKind.SERVICE, service)
    assert scene.statuses(spreading(scene, PodTopologySpreadArgs((rule,), False))) == {"a": verdict}


def test_explicit_default_constraints_make_another_class() -> None:
    """Where the system's defaults hold a row without a zone is scored by its host; a pod's own constraints leave it out."""
    defaults = [spread(3, HOST, hard=False), spread(5, ZONE, hard=False)]
    scene = Scene([node("a", "x"), node("b")], [pod("p", on="b")], pod("new"))
    put(
        scene.objects,
        ObjectKind.SERVICE,
        {"metadata": {"name": "s", "namespace": "default"}, "spec": {"selector": {"app": "web"}}},
    )
    plugin, own = spreading(scene), decode_pod(pod("own", topologySpreadConstraints=defaults))
    assert scored(scene, plugin) == ({"a": 6, "b": 3}, {"a": 50, "b": 100})
    assert plugin.sign(own) != plugin.sign(scene.pod)
    scene.pod = own
    assert scored(scene, plugin) == ({"a": 6, "b": -1}, {"a": 100, "b": 0})


@pytest.mark.parametrize(
    ("owner", "kind", "document"),
    [
        ("ReplicaSet", ObjectKind.REPLICA_SET, {"selector": {"matchLabels": {"app": "web"}}}),
        ("StatefulSet", ObjectKind.STATEFUL_SET, {"selector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}),
        ("ReplicationController", ObjectKind.REPLICATION_CONTROLLER, {"selector": {"app": "web"}}),
    ],
)  # fmt: skip
def test_controller_pods_are_spread_by_default(owner: str, kind: ObjectKind, document: Document) -> None:
    waiting = pod("new")
    version = "v1" if owner == "ReplicationController" else "apps/v1"
    reference = {"apiVersion": version, "kind": owner, "name": "r", "uid": "r", "controller": True}
    waiting["metadata"]["ownerReferences"] = [reference]
    scene = Scene([node("a", "x"), node("b", "y")], [pod("p", on="b")], waiting)
    plugin = spreading(scene)
    assert plugin.sign(scene.pod) == ()
    put(scene.objects, kind, {"metadata": {"name": "r", "namespace": "default"}, "spec": document})

    assert plugin.sign(scene.pod) != ()
    found = scored(scene, plugin)
    assert found is not None
    assert found[1]["a"] == 100 > found[1]["b"]


def test_owner_of_another_api_group_is_ignored() -> None:
    waiting = pod("new")
    reference = {"apiVersion": "example.com/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
    waiting["metadata"]["ownerReferences"] = [reference]
    scene = Scene([node("a", "x")], [], waiting)
    selector = {"selector": {"matchLabels": {"app": "web"}}}
    put(scene.objects, ObjectKind.REPLICA_SET, {"metadata": {"name": "r", "namespace": "default"}, "spec": selector})
    assert spreading(scene).sign(scene.pod) == ()


# -- InterPodAffinity: Filter ------------------------------------------------------------------------------------------


def test_required_affinity_allows_zones_of_pods_matching_all_terms() -> None:
    both = near(term(), term("rack", labelSelector={"matchLabels": {"app": "web"}}))
    nodes = [node_document(name, labels={ZONE: zone, "rack": name}) for name, zone in (("a", "x"), ("b", "x"))]
    scene = Scene([*nodes, node("c", "y"), node("d")], [pod("p", on="a")], pod("new", affinity=both))
    assert scene.statuses(relating(scene)) == {"a": None, "b": NOT_NEAR, "c": NOT_NEAR, "d": NOT_NEAR}


def test_first_pod_with_self_affinity_is_allowed_where_the_key_exists() -> None:
    nodes = [node("a", "x"), node("b")]
    alone = Scene(nodes, [], pod("new", affinity=near(term())))
    other = Scene(nodes, [], pod("new", app="db", affinity=near(term())))
    assert alone.statuses(relating(alone)) == {"a": None, "b": NOT_NEAR}
    assert other.statuses(relating(other)) == {"a": NOT_NEAR, "b": NOT_NEAR}


def test_required_anti_affinity_counts_deleting_pods() -> None:
    placed = [pod("p", on="a", deleted_at="2026-01-01T00:00:00Z")]
    scene = Scene([node("a", "x"), node("b", "x"), node("c")], placed, pod("new", affinity=far(term())))
    assert scene.statuses(relating(scene)) == {"a": NOT_FAR, "b": NOT_FAR, "c": None}


@pytest.mark.parametrize(
    ("about", "is_kept_away"),
    [
        ({}, True),
        ({"namespaces": ["other"]}, False),
        ({"namespaceSelector": {"matchLabels": {"team": "x"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "y"}}}, False),
        ({"namespaceSelector": {}}, True),
        ({"labelSelector": None}, False),
    ],
)
def test_anti_affinity_of_placed_pods_excludes_matching_pods(about: Document, is_kept_away: bool) -> None:
    placed = [pod("p", on="a", app="db", affinity=far(term(**about)))]
    scene = Scene([node("a", "x"), node("b", "y")], placed, pod("new"))
    put(scene.objects, ObjectKind.NAMESPACE, {"metadata": {"name": "default", "labels": {"team": "x"}}})
    plugin = relating(scene)

    assert scene.statuses(plugin) == {"a": UNWANTED if is_kept_away else None, "b": None}
    assert (plugin.cache_key(scene.view(), scene.pod) is None) is not is_kept_away


def test_namespace_selector_follows_current_labels() -> None:
    waiting = pod("new", affinity=far(term(namespaceSelector={"matchLabels": {"team": "x"}})))
    scene = Scene([node("a", "x")], [pod("p", on="a", namespace="other")], waiting)
    plugin = relating(scene)
    assert scene.statuses(plugin) == {"a": None}
    put(scene.objects, ObjectKind.NAMESPACE, {"metadata": {"name": "other", "labels": {"team": "x"}}})
    assert scene.statuses(plugin) == {"a": NOT_FAR}


@pytest.mark.parametrize(("wants", "refused"), [("podAffinity", NOT_NEAR), ("podAntiAffinity", None)])
def test_namespace_selector_excludes_unmatched_namespaces(
    wants: str, refused: tuple[Code, tuple[str, ...]] | None
) -> None:
    """kube-scheduler 1.36.3 lets it be about all (tests/conformance/upstream_defects.py); found by `make oracle`, odd-424360."""
    selector = {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}
    waiting = pod("new", app="db", affinity={wants: {REQUIRED: [term(namespaceSelector=selector)]}})
    scene = Scene([node("a", "x")], [pod("p", on="a", namespace="left-out")], waiting)
    put(scene.objects, ObjectKind.NAMESPACE, {"metadata": {"name": "left-out", "labels": {"team": "a"}}})
    put(scene.objects, ObjectKind.NAMESPACE, {"metadata": {"name": "default"}})
    assert scene.statuses(relating(scene)) == {"a": refused}


def test_namespace_selector_waits_while_namespaces_are_unreadable() -> None:
    by_labels = pod("new", affinity=far(term(namespaceSelector={"matchLabels": {"team": "x"}})))
    scene = Scene([node("a", "x")], [pod("p", on="a", namespace="other")], by_labels)
    plugin, plain = relating(scene), decode_pod(pod("plain", affinity=far(term())))
    known = plugin.sign(scene.pod)
    scene.objects.set_unreadable(ObjectKind.NAMESPACE, "403 Forbidden: no")
    words = "Namespace objects cannot be read by the scheduler: 403 Forbidden: no"
    refusal = Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "InterPodAffinity", (words,))
    assert plugin.pre_filter(scene.view(), scene.pod).status == refusal
    assert not plugin.pre_filter(scene.view(), plain).status.reasons
    assert plugin.sign(scene.pod) is not known
    scene.objects.set_unreadable(ObjectKind.NAMESPACE, "")
    assert plugin.pre_filter(scene.view(), scene.pod).status.is_success
    assert plugin.sign(scene.pod) is known


@pytest.mark.parametrize("in_between", [1, pod_demands.UNKNOWN_MAX + 1])
def test_new_anti_affinity_applies_after_any_number_of_pods(in_between: int) -> None:
    """What is demanded by another label than before is no smaller for there being as many labels as before."""
    first = pod("first", on="a", app="db", affinity=far(term(ZONE)))
    scene = Scene([node("a", "x"), node("b", "y")], [first], pod("new"))
    plugin, row = relating(scene), int(scene.rows(["b"])[0])
    assert scene.statuses(plugin) == {"a": UNWANTED, "b": None}

    scene.table.remove_pod(int(scene.rows(["a"])[0]), "uid-first")
    for number in range(in_between):
        about_others = {"matchLabels": {"app": f"other-{number}"}}
        passing = pod(f"p{number}", on="b", app="db", affinity=far(term(HOST, labelSelector=about_others)))
        scene.table.add_pod(row, decode_pod(passing))
    scene.table.add_pod(row, decode_pod(pod("second", on="b", app="db", affinity=far(term(HOST)))))
    assert scene.statuses(plugin) == {"a": None, "b": UNWANTED}


# -- InterPodAffinity: Score -------------------------------------------------------------------------------------------


def test_preferences_of_both_sides_are_summed_per_domain() -> None:
    placed = [
        pod("liked", on="a", app="cache"),
        pod("liking", on="b", app="db", affinity=liking(30, term())),
        pod("needing", on="c", app="db", affinity=near(term())),
        pod("disliking", on="c", app="db", affinity={"podAntiAffinity": liking(4, term())["podAffinity"]}),
    ]
    own = liking(10, term(labelSelector={"matchLabels": {"app": "cache"}}))
    scene = Scene([node("a", "x"), node("b", "y"), node("c", "z"), node("d")], placed, pod("new", affinity=own))

    assert scored(scene, relating(scene)) == (
        {"a": 10, "b": 30, "c": -3, "d": 0},
        {"a": 39, "b": 100, "c": 0, "d": 9},
    )
    heavy = scored(scene, relating(scene, hard_pod_affinity_weight=50))
    assert heavy is not None
    assert heavy[0]["c"] == 46


def test_preferences_of_placed_pods_can_be_ignored() -> None:
    placed = [pod("p", on="a", app="db", affinity=liking(30, term()))]
    scene = Scene([node("a", "x"), node("b", "y")], placed, pod("new"))
    assert scored(scene, relating(scene)) == ({"a": 30, "b": 0}, {"a": 100, "b": 0})
    assert scored(scene, relating(scene, ignore_preferred_terms_of_existing_pods=True)) is None

    own = liking(10, term(labelSelector={"matchLabels": {"app": "cache"}}))
    for affinity in (own, {"podAntiAffinity": own["podAffinity"]}):
        scene = Scene([node("a", "x"), node("b", "y")], placed, pod("new", affinity=affinity))
        found = scored(scene, relating(scene, ignore_preferred_terms_of_existing_pods=True))
        assert found is not None, "upstream counts them for a pod with preferences of its own, whichever they are"
        assert found[0] == {"a": 30, "b": 0}


def test_pod_unrelated_to_placed_pods_is_skipped() -> None:
    scene = Scene([node("a", "x")], [pod("p", on="a", app="db")], pod("new", affinity=liking(30, term())))
    assert scored(scene, relating(scene)) is None


# -- overlays ----------------------------------------------------------------------------------------------------------


class FailuresAreFatal:
    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None:
        """Times are of no interest here."""

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        raise AssertionError(f"{plugin} failed at {point}: {error}")


def codes_with(
    scene: Scene, plugin: PodTopologySpread | InterPodAffinity, added: dict[str, Pod], removed: list[str]
) -> dict[str, int]:
    """Filter's codes with pods added (by node) and removed (by uid) in thought."""
    view, rows = scene.view(), scene.rows(scene.names)
    assert plugin.pre_filter(view, scene.pod).status.is_success
    before = plugin.filter(view, scene.pod, rows).tolist()
    overlay = OverlayCycle(scene.table, view.state, scene.pod, [plugin], Runner(FailuresAreFatal(), lambda: 0.0), 1)
    for row in rows.tolist():
        for other in scene.table.pods_on(row):
            if other.uid in removed:
                assert overlay.remove_pod(other, row).is_success
    for name, other in added.items():
        assert overlay.add_pod(other, int(scene.rows([name])[0])).is_success
    codes = plugin.filter(overlay.view, scene.pod, rows)
    assert plugin.filter(view, scene.pod, rows).tolist() == before  # what was thought did not happen
    return {scene.table.node(int(row)).name: int(code) for row, code in zip(rows, codes, strict=True)}


def test_spread_follows_simulated_additions_and_removals() -> None:
    placed = [pod("p0", on="a"), pod("p1", on="a")]
    scene = Scene([node("a", "x"), node("b", "y")], placed, pod("new", topologySpreadConstraints=[spread()]))
    plugin, more = spreading(scene), decode_pod(pod("q", app="web"))
    assert codes_with(scene, plugin, {}, []) != {"a": 0, "b": 0}
    assert codes_with(scene, plugin, {}, ["uid-p0", "uid-p1"]) == {"a": 0, "b": 0}
    assert codes_with(scene, plugin, {"b": more}, ["uid-p0"]) == {"a": 0, "b": 0}


def test_affinity_follows_simulated_additions_and_removals() -> None:
    waiting = pod("new", affinity=near(term(labelSelector={"matchLabels": {"app": "cache"}})) | far(term()))
    placed = [pod("cache", on="a", app="cache"), pod("web", on="a"), pod("cache2", on="b", app="cache")]
    scene = Scene([node("a", "x"), node("b", "y")], placed, waiting)
    plugin = relating(scene)
    hostile = decode_pod(pod("q", app="db", affinity=far(term())))

    assert [code != 0 for code in codes_with(scene, plugin, {}, []).values()] == [True, False]
    assert codes_with(scene, plugin, {}, ["uid-web"]) == {"a": 0, "b": 0}
    assert [code != 0 for code in codes_with(scene, plugin, {"b": hostile}, []).values()] == [True, True]
    assert [code != 0 for code in codes_with(scene, plugin, {}, ["uid-cache2"]).values()] == [True, True]


def test_affinity_uses_the_pods_of_the_given_view() -> None:
    scene = Scene([node("a", "x"), node("b", "y")], [], pod("new"))
    plugin, runner = relating(scene), Runner(FailuresAreFatal(), lambda: 0.0)
    assert plugin.pre_filter(scene.view(), scene.pod).status.code is Code.SKIP

    thought = OverlayCycle(scene.table, scene.view().state, scene.pod, [], runner, 1)
    hostile = decode_pod(pod("q", app="db", affinity=far(term())))
    assert thought.add_pod(hostile, int(scene.rows(["b"])[0])).is_success
    assert plugin.pre_filter(thought.view, scene.pod).status.is_success
    codes = plugin.filter(thought.view, scene.pod, scene.rows(scene.names)).tolist()
    assert [plugin.reasons.status(code).reasons if code else () for code in codes] == [(), UNWANTED[1]]
    assert plugin.topology_keys(thought.view, scene.pod) == (ZONE,)


@pytest.mark.parametrize(
    ("before", "after", "helps"),
    [
        ({ZONE: "x", "rack": "1"}, {ZONE: "y", "rack": "1"}, True),
        ({ZONE: "x", "rack": "1"}, {"rack": "1"}, True),
        ({ZONE: "x", "rack": "1"}, {ZONE: "x", "rack": "2"}, False),
        ({ZONE: "x", "rack": "1"}, {ZONE: "x", "rack": "1", "row": "1"}, False),
        ({"rack": "1"}, {ZONE: "x", "rack": "1"}, False),
        ({ZONE: "x", "last": "1"}, {ZONE: "x"}, True),
    ],
)
def test_node_that_leaves_an_anti_affinity_domain_requeues_pods(
    before: dict[str, str], after: dict[str, str], helps: bool
) -> None:
    """The pod has no terms of its own. Of a key that no node has any more nobody knows whom it kept away."""
    hostile = pod("db", on="a", app="db", affinity=far(term()))
    scene = Scene([node("a", "x"), node_document("b", labels={"rack": "1"})], [hostile], pod("new"))
    registered = relating(scene).events_to_register()
    (hint,) = [one.hint for one in registered if one.event.label == "Node" and one.hint is not None]
    was, now = (decode_node(node_document("c", labels=labels)) for labels in (before, after))
    assert hint(decode_pod(scene.pending), was, now) is (Hint.QUEUE if helps else Hint.SKIP)
    aloof = decode_pod(pod("aloof", app="other"))
    assert (hint(aloof, was, now) is Hint.QUEUE) == ("last" in before)


@pytest.mark.parametrize(
    ("constraints", "keys"),
    [
        ([], None),
        ([spread(1, ZONE)], (ZONE,)),
        ([spread(1, HOST), spread(2, ZONE, hard=False)], (HOST, ZONE)),
        ([spread(1, ZONE), spread(2, HOST, hard=False)], None),
    ],
)
def test_rows_of_a_domain_are_equal_unless_pods_count_per_row(
    constraints: list[Document], keys: tuple[str, ...] | None
) -> None:
    scene = Scene([node("a", "x")], [], pod("new", topologySpreadConstraints=constraints))
    plugin = spreading(scene)
    plugin.pre_filter(scene.view(), scene.pod)
    assert plugin.topology_keys(scene.view(), scene.pod) == keys


def test_scores_are_int64_and_codes_bytes() -> None:
    waiting = pod("new", topologySpreadConstraints=[spread(), spread(2, HOST, hard=False)], affinity=far(term()))
    scene = Scene([node("a", "x"), node("b")], [], waiting)
    view, rows = scene.view(), scene.rows(scene.names)
    for plugin in (spreading(scene), relating(scene)):
        assert plugin.pre_filter(view, scene.pod).status.is_success
        assert plugin.filter(view, scene.pod, rows).dtype == np.uint8
    plugin = spreading(scene)
    assert plugin.pre_score(view, scene.pod, rows).is_success
    assert plugin.score(view, scene.pod, rows).dtype == np.int64
