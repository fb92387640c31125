"""What `--fix` says is true: done to the cluster, it makes the pod fit; and it misses no plain fix."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.config import loading
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.observe.explain_view import NotExplainedError
from multisched.testing.builders import Document, node_document
from multisched.whatif import fixes
from tests.unit.whatif.clusters import ASKED, applied, clusters, dump_of, explained, outcome, small_pod


@pytest.mark.timeout(240)  # two whole programs are built for each example
@given(clusters(), st.integers(0, 11))
def test_fix_applied_to_the_cluster_makes_the_pod_fit(documents: list[Document], choice: int) -> None:
    dump = dump_of(*documents)
    cache = dump._sandbox.cache
    pods, nodes = set(cache.uids()), [node for _, node in cache.nodes.live_rows()]

    view = dump.pod(ASKED)

    assert (set(cache.uids()), [node for _, node in cache.nodes.live_rows()]) == (pods, nodes), "trials leave no trace"
    cache.validate()
    assert view.fixes is not None, view
    sizes = [fix.size for fix in view.fixes]
    assert sizes == sorted(sizes)
    if view.fixes:
        fix = view.fixes[choice % len(view.fixes)]
        assert outcome(*applied(documents, fix))[0] == "placed", fix


def tainted(name: str, key: str) -> Document:
    node = node_document(name)
    node["spec"]["taints"] = [{"key": key, "value": "yes", "effect": "NoSchedule"}]
    return node


def in_zone(zone: str) -> dict[str, str]:
    return {"topology.kubernetes.io/zone": zone}


SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": "web"}},
}
CASES: dict[str, tuple[list[Document], dict[str, Any], str]] = {
    "a request that is too large": (
        [node_document("n1", cpu="4"), small_pod("other", cpu="1500m", node="n1")],
        {"cpu": "3"},
        "lower the cpu request from 3 to 2500m",
    ),
    "a taint": ([tainted("n1", "team")], {}, "add a toleration of the taint team=yes:NoSchedule"),
    "a selector": ([node_document("n1")], {"nodeSelector": {"disk": "ssd"}}, "drop disk=ssd from the node selector"),
    "a label": ([node_document("n1")], {"nodeSelector": {"disk": "ssd"}}, "set the label disk=ssd on node n1"),
    "the one label of two that is lacking": (
        [node_document("n1", labels={"disk": "ssd"})],
        {"nodeSelector": {"disk": "ssd", "rack": "a"}},
        "set the label rack=a on node n1",
    ),
    "a gate": ([node_document("n1")], {"schedulingGates": [{"name": "hold"}]}, "remove the scheduling gate hold"),
    "a port": (
        [node_document("n1"), small_pod("other", node="n1", ports=[{"containerPort": 1, "hostPort": 80}])],
        {"ports": [{"containerPort": 1, "hostPort": 80}]},
        "drop the host port 80/TCP",
    ),
    "a cordoned node": (
        [{**node_document("n1"), "spec": {"unschedulable": True}}],
        {},
        "uncordon node n1",
    ),
    "a victim": (
        [node_document("n1"), small_pod("small", cpu="500m", node="n1"), small_pod("big", cpu="3500m", node="n1")],
        {"cpu": "1"},
        "delete the pod default/big (priority 0) from n1",
    ),
    "a spread": (
        [node_document("n1"), node_document("full", cpu="100m"), small_pod("w", node="n1", labels={"app": "web"})],
        {"cpu": "1", "labels": {"app": "web"}, "topologySpreadConstraints": [SPREAD]},
        "raise maxSkew over kubernetes.io/hostname from 1 to 2",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_simple_fix_is_found(case: str) -> None:
    cluster, spec, text = CASES[case]
    view = explained(*cluster, small_pod("late", **spec))
    assert view.fixes is not None
    assert text in [fix.text for fix in view.fixes]


def test_fix_can_remove_a_single_taint() -> None:
    view = explained(tainted("n1", "team"), small_pod("late"))
    assert view.fixes is not None
    (fix,) = [one for one in view.fixes if one.kind == "node"]
    assert fix.text == "remove the taint team:NoSchedule from node n1"
    assert (fix.command, fix.change) == ("kubectl taint node n1 team:NoSchedule-", {"taint": "team", "node": "n1"})


def test_one_toleration_does_not_cover_taints_of_two_keys() -> None:
    node = tainted("n1", "team")
    node["spec"]["taints"] += tainted("n1", "maintenance")["spec"]["taints"]
    assert explained(node, small_pod("late")).fixes == ()


def test_remaining_requirements_count_after_dropping_an_expression() -> None:
    wanted = {"rack": "a", "system": "linux"}
    expressions = [{"key": key, "operator": "In", "values": [value]} for key, value in wanted.items()]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    node = node_document("n1", labels={"system": "linux"})
    alone = explained(node, small_pod("late", affinity=affinity)).fixes
    assert "drop rack=a from the required node affinity" in [fix.text for fix in alone or ()]
    both = explained(node, small_pod("late", affinity=affinity, nodeSelector={"disk": "ssd"})).fixes
    assert both == ()


def test_spread_fix_raises_max_skew_or_drops_the_constraint() -> None:
    cluster, spec, _ = CASES["a spread"]
    fixes = explained(*cluster, small_pod("late", **spec)).fixes
    changes = [fix.change for fix in fixes or () if fix.kind == "spread"]
    assert {"constraint": 0, "maxSkew": 2} in changes


def test_explanation_reports_that_no_single_change_helps() -> None:
    node = tainted("n1", "team")
    node["spec"]["unschedulable"] = True
    view = explained(node, small_pod("late", cpu="8", nodeSelector={"disk": "ssd"}))
    assert view.fixes == ()


@pytest.mark.parametrize("selector", [{"kubernetes.io/hostname": "n2"}, {"topology.kubernetes.io/zone": "b"}])
def test_fixes_do_not_change_the_identity_or_topology_of_a_node(selector: dict[str, str]) -> None:
    view = explained(
        node_document("n1", labels={"topology.kubernetes.io/zone": "a"}), small_pod("late", nodeSelector=selector)
    )
    assert view.fixes is not None
    assert [fix.kind for fix in view.fixes] == ["selector"]


def test_fix_can_set_a_missing_zone() -> None:
    view = explained(node_document("n1"), small_pod("late", nodeSelector={"topology.kubernetes.io/zone": "b"}))
    assert view.fixes is not None
    assert [fix.kind for fix in view.fixes] == ["selector", "node"]


def test_gate_is_reported_if_it_holds_the_pod() -> None:
    view = explained(node_document("n1"), small_pod("late", schedulingGates=[{"name": "hold"}]))
    assert view.now is not None
    gates = [(said.plugin, said.said) for said in view.now.points if said.point == "PreEnqueue"]
    assert gates == [("SchedulingGates", "gates it: waiting for scheduling gates: [hold]")]


GATED = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
- name: all
  schedulerNames: [default-scheduler]
  nodes: {rule: rest}"""


class Quota:
    """A gate of somebody else's, behind those that ship."""

    name = "Quota"

    def pre_enqueue(self, pod: Pod) -> Status:
        return Status.unschedulable("quota is used up")


def test_gates_before_the_refusing_one_admit_and_later_ones_are_not_called() -> None:
    profile = f"\n  profile: {{plugins: {{enabled: [{{name: {__name__}:Quota}}]}}}}"
    configured = loading.parse(GATED + profile, "test")
    for gates, said in (((), "Quota"), (("hold",), "SchedulingGates")):
        pod = small_pod("late", schedulingGates=[{"name": gate} for gate in gates])
        view = dump_of(node_document("n1"), pod, configured=configured).pod(ASKED)
        assert view.now is not None
        *before, last = [(one.plugin, one.said) for one in view.now.points if one.point == "PreEnqueue"]
        assert last[0] == said
        assert last[1].startswith("gates it: ")
        assert ("SchedulingGates" in dict(before)) is (said == "Quota")
        assert set(dict(before).values()) <= {"admits it"}


@pytest.mark.parametrize(
    ("free", "told"), [("3Gi", "3Gi"), ("2047Mi", "2047Mi"), ("1025Ki", "1025Ki"), ("1000", "1000"), ("2Ti", "2Ti")]
)
def test_memory_fix_uses_the_largest_whole_unit(free: str, told: str) -> None:
    late = small_pod("late", cpu="100m")
    late["spec"]["containers"][0]["resources"]["requests"]["memory"] = "4Ti"
    fixes = explained(node_document("n1", memory=free), late).fixes
    assert [fix.text for fix in fixes or ()] == [f"lower the memory request from 4Ti to {told}"]


def test_several_taints_of_one_key_get_one_wide_toleration() -> None:
    node = tainted("n1", "team")
    node["spec"]["taints"].append({"key": "team", "value": "b", "effect": "NoExecute"})
    late = small_pod("late", tolerations=[{"key": "other", "operator": "Exists"}])
    (fix,) = [one for one in explained(node, late).fixes or () if one.kind == "toleration"]
    assert fix.text == "add a toleration of the taint team"
    assert fix.change["toleration"] == {"key": "team", "operator": "Exists"}
    assert '"/spec/tolerations/-"' in fix.command
    (alone,) = [one for one in explained(node, small_pod("late")).fixes or () if one.kind == "toleration"]
    assert '"/spec/tolerations"' in alone.command


@pytest.mark.parametrize(
    ("operator", "values", "label"),
    [("Gt", ["7"], "8"), ("Lt", ["7"], "6"), ("Exists", [], "true"), ("In", ["a", "b"], "a")],
)
def test_label_fix_exists_for_every_operator(operator: str, values: list[str], label: str) -> None:
    expression = {"key": "gen", "operator": operator, "values": values}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    fixes = explained(node_document("n1"), small_pod("late", affinity=affinity)).fixes
    (fix,) = [one for one in fixes or () if one.kind == "node"]
    assert fix.change == {"node": "n1", "label": "gen", "value": label}


def test_victim_fixes_are_tried_only_where_deletions_may_help() -> None:
    """A node that is refused for its labels is not opened by a deletion; one that is merely full is."""
    full, other = node_document("full", cpu="1", labels={"disk": "ssd"}), node_document("other", cpu="1")
    documents = [full, other, small_pod("on-full", cpu="1", node="full"), small_pod("on-other", cpu="1", node="other")]
    view = explained(*documents, small_pod("late", cpu="500m", nodeSelector={"disk": "ssd"}))
    victims = [fix.change["name"] for fix in view.fixes or () if fix.kind == "victim"]
    assert victims == ["on-full"]


def test_nodes_without_helpful_deletions_do_not_hide_one_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many nodes are looked at for victims and no more, those first that fewest plugins refuse."""
    monkeypatch.setattr(fixes, "NODES_TRIED", 1)
    twice = node_document("b", cpu="1")
    twice["spec"]["unschedulable"] = True
    documents = [tainted("a", "team"), twice, node_document("c", cpu="1")]
    documents += [small_pod(f"on-{node}", cpu="1", node=node) for node in "abc"]
    view = explained(*documents, small_pod("late", cpu="500m"))
    assert [fix.change["name"] for fix in view.fixes or () if fix.kind == "victim"] == ["on-c"]


def test_nodes_with_the_fewest_rejectors_are_tried_first_for_victims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixes, "NODES_TRIED", 1)
    port = [{"containerPort": 80, "hostPort": 80}]
    documents = [node_document(name, cpu="1") for name in "ab"]
    documents += [small_pod(f"on-{name}", cpu="800m", node=name, ports=port if name == "a" else []) for name in "ab"]
    view = explained(*documents, small_pod("late", cpu="500m", ports=port))
    assert [fix.change["name"] for fix in view.fixes or () if fix.kind == "victim"] == ["on-b"]


def test_node_refused_by_two_plugins_gets_no_single_fix() -> None:
    first, second = tainted("first", "team"), tainted("second", "team")
    second["spec"]["unschedulable"] = True
    view = explained(second, first, small_pod("late"))
    nodes = [fix.node for fix in view.fixes or () if fix.kind == "node"]
    assert nodes == ["first"]


def test_dump_without_nodes_is_reported() -> None:
    assert any("has no nodes" in note for note in explained(small_pod("late")).notes)


def test_missing_pod_of_a_dump_may_be_unreadable() -> None:
    with pytest.raises(NotExplainedError, match="default/late is not in the dump, or has ended; an object of the dump"):
        explained(node_document("n1"), {**small_pod("late"), "metadata": 5})


def test_gate_and_another_reason_need_two_changes() -> None:
    view = explained(tainted("n1", "team"), small_pod("late", schedulingGates=[{"name": "hold"}]))
    assert view.fixes == ()


def test_smallest_fix_is_first() -> None:
    view = explained(
        node_document("n1", cpu="4"), small_pod("other", cpu="2", node="n1"), small_pod("late", cpu="2100m")
    )
    assert view.fixes is not None
    assert [fix.kind for fix in view.fixes] == ["request", "victim"]
    assert view.fixes[1].command == "kubectl -n default delete pod other"


def test_feasible_pod_gets_no_fix() -> None:
    view = explained(node_document("n1"), small_pod("late"))
    assert (view.fixes, view.notes) == ((), ("it fits now, on n1, and only has to be retried",))


def test_placed_pod_gets_no_fix() -> None:
    view = explained(node_document("n1"), small_pod("late", node="n1"))
    assert (view.fixes, view.notes) == (None, ("it has a node, so there is nothing to fix",))


def test_toleration_that_opens_the_most_nodes_is_shown() -> None:
    """Though it is the last by its name."""
    nodes = [tainted(f"n{number}", f"key-{number}") for number in range(fixes.FIXES_PER_KIND)]
    view = explained(*nodes, tainted("y", "most"), tainted("z", "most"), small_pod("late"))
    wanted = [fix.change["toleration"]["key"] for fix in view.fixes or () if fix.kind == "toleration"]
    assert len(wanted) == fixes.FIXES_PER_KIND
    assert "most" in wanted


def test_pod_level_request_is_lowered_as_such() -> None:
    late = small_pod("late", cpu="3", resources={"requests": {"cpu": "6"}})
    (fix,) = [one for one in explained(node_document("n1", cpu="4"), late).fixes or () if one.kind == "request"]
    assert fix.change == {"resource": "cpu", "from": 6000, "to": 4000}
