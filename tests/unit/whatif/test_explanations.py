"""What an explanation says of a dump: points, verdicts, winners, and one node among many."""

from __future__ import annotations

import pytest

from multisched.observe.explain_view import Attempt, ExplainQuery, NotExplainedError
from multisched.testing.builders import Document, node_document
from tests.unit.whatif.clusters import explained, small_pod

PLAIN = ExplainQuery("default", "late")
CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "nope"}}


def now(*documents: Document) -> Attempt:
    view = explained(*documents, query=PLAIN)
    assert view.now is not None
    return view.now


def on_node(node: str, *documents: Document) -> str:
    view = explained(*documents, query=ExplainQuery("default", "late", node=node))
    assert view.on_node is not None
    return view.on_node.text


def test_winner_and_runners_up_are_shown_per_plugin() -> None:
    attempt = now(*(node_document(f"n{cpu}", cpu=str(cpu)) for cpu in (2, 4, 8)), small_pod("late", cpu="1"))
    assert attempt.winner is not None
    assert (attempt.winner.node, attempt.ties, attempt.feasible) == ("n8", 1, 3)
    assert [scored.node for scored in attempt.runners_up] == ["n4", "n2"]
    for scored in (attempt.winner, *attempt.runners_up):
        assert sum(part.score * part.weight for part in scored.parts) == scored.total


def test_each_node_is_counted_once_for_its_first_rejector() -> None:
    cordoned = node_document("n0", cpu="100m")
    cordoned["spec"]["unschedulable"] = True
    attempt = now(cordoned, node_document("n1", cpu="100m"), node_document("n2"), small_pod("late", cpu="1"))
    told = [(verdict.plugin, verdict.reasons, verdict.nodes) for verdict in attempt.refused]
    assert told == [
        ("NodeUnschedulable", ("node(s) were unschedulable",), ("n0",)),
        ("NodeResourcesFit", ("Insufficient cpu",), ("n1",)),
    ]
    assert (attempt.outcome, attempt.node) == ("placed", "n2")


def test_node_names_are_shown_up_to_the_limit() -> None:
    nodes = [node_document(f"n{index:02}", cpu="100m") for index in range(15)]
    few = explained(*nodes, small_pod("late", cpu="1"), query=ExplainQuery("default", "late", names=3)).now
    assert few is not None
    assert (few.refused[0].count, few.refused[0].nodes) == (15, ("n00", "n01", "n02"))


def test_evaluation_ends_when_every_node_is_refused() -> None:
    attempt = now(node_document("n1"), small_pod("late", volumes=[CLAIM]))
    said = {point.plugin: point.said for point in attempt.points if point.point == "PreFilter"}
    refusal = 'refuses the pod everywhere: persistentvolumeclaim "nope" not found'
    assert said["VolumeRestrictions"] == refusal
    assert (said["NodeResourcesFit"], said["VolumeZone"]) == ("does not refuse it", "was not called any more")
    assert (attempt.domain_nodes, attempt.looked_at) == (1, 0)


def test_one_node_is_explained_in_a_sentence() -> None:
    small, large, other = (
        node_document("small", cpu="100m"),
        node_document("large", cpu="16"),
        node_document("other", cpu="4"),
    )
    late = small_pod("late", cpu="1")
    cluster = (small, large, other, late)
    assert on_node("small", *cluster) == "It is not feasible: NodeResourcesFit: Insufficient cpu."
    assert on_node("large", *cluster) == "It is the chosen node."
    text = on_node("other", *cluster)
    assert text.startswith("It is feasible, with ")
    assert "points less than large: NodeResourcesFit -" in text


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("worker-3", "node worker-3 is not known here: did you mean worker-13 or worker-2 or worker-1?"),
        ("Worker-1", "node Worker-1 is not known here: did you mean worker-1 or worker-13 or worker-2?"),
        ("gpu", "node gpu is not known here: none of the 3 nodes has a name like that"),
    ],
)
def test_unknown_node_is_refused_with_suggestions(node: str, message: str) -> None:
    nodes = (node_document("worker-1"), node_document("worker-2"), node_document("worker-13"))
    with pytest.raises(NotExplainedError) as told:
        on_node(node, *nodes, small_pod("late"))
    assert (str(told.value), told.value.status) == (message, 404)


def test_nodes_left_out_by_pre_filter_or_not_evaluated_are_explained() -> None:
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": fields}]}}
    narrowed = small_pod("late", affinity={"nodeAffinity": required})
    assert (
        on_node("n2", node_document("n1"), node_document("n2"), narrowed)
        == "NodeAffinity restricted the pod to other nodes."
    )
    claimed = small_pod("late", volumes=[CLAIM])
    assert on_node("n1", node_document("n1"), claimed) == (
        'No node was evaluated: VolumeRestrictions: persistentvolumeclaim "nope" not found.'
    )


def test_node_of_another_domain_is_explained() -> None:
    foreign = node_document("n2", labels={"multisched.io/domain": "elsewhere"})
    late = small_pod("late")
    assert on_node("n2", node_document("n1"), foreign, late) == (
        "Node n2 may not be used by domain all: its label multisched.io/domain=elsewhere assigns it to no configured domain;"
        " label it multisched.io/domain=all, or give all nodes by a rule or a selector that matches it."
    )


def test_unreadable_node_is_explained() -> None:
    unreadable = node_document("n2", cpu="lots")
    text = on_node("n2", node_document("n1"), unreadable, small_pod("late"))
    assert text.startswith("Node n2 cannot be read: status.allocatable")


def test_preemption_victims_are_shown() -> None:
    attempt = now(
        node_document("n1", cpu="2"), small_pod("low", cpu="2", node="n1"), small_pod("late", cpu="1", priority=9)
    )
    assert (attempt.outcome, attempt.nominated_node, attempt.victims) == ("refused", "n1", ("default/low",))


def test_placed_pod_is_tried_as_if_absent() -> None:
    view = explained(node_document("n1", cpu="2"), small_pod("late", cpu="2", node="n1"), query=PLAIN)
    assert view.now is not None
    assert (view.state, view.node, view.now.outcome, view.now.node) == ("bound", "n1", "placed", "n1")
    told = (view.namespace, view.name, view.uid, view.scheduler, view.domain, view.waiting_for)
    assert told == ("default", "late", "uid-late", "default-scheduler", "all", "")


def test_unreadable_pod_is_explained_as_refused() -> None:
    view = explained(node_document("n1"), small_pod("late", overhead={"cpu": "lots"}), query=PLAIN)
    assert view.state == "refused"
    assert view.waiting_for.startswith("a change of the pod itself: spec.overhead: cpu: 'lots'")


def test_pod_of_no_domain_is_an_error() -> None:
    with pytest.raises(NotExplainedError, match="is not in the dump"):
        explained(node_document("n1"), query=PLAIN)
    other = small_pod("late")
    other["spec"]["schedulerName"] = "other"
    with pytest.raises(
        NotExplainedError, match="no domain serves schedulerName other; the configuration has default-sch"
    ):
        explained(node_document("n1"), other, query=PLAIN)


def test_refusals_for_nominated_pods_sum_to_the_message() -> None:
    promised = small_pod("promised", cpu="2", priority=9)
    promised["status"]["nominatedNodeName"] = "n1"
    attempt = now(node_document("n1", cpu="2"), node_document("n2", cpu="100m"), promised, small_pod("late", cpu="1"))
    assert attempt.message.startswith("0/2 nodes are available: 2 Insufficient cpu.")
    assert [(verdict.count, verdict.nodes, verdict.is_for_nominated) for verdict in attempt.refused] == [
        (1, ("n2",), False),
        (1, ("n1",), True),
    ]
