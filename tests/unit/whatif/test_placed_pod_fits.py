"""Where standing pods might stand is what all filters say of a cluster without the pod, class by class or one by one."""

from __future__ import annotations

import msgspec
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multisched.config import loading
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Bools, Codes, Rows
from multisched.framework.points import CycleView
from multisched.framework.reasons import ReasonTable
from multisched.model.objects import Pod
from multisched.shell.domain import DomainWorker
from multisched.testing.builders import Document, node_document
from multisched.whatif import placed_pod_fits
from multisched.whatif.placed_pod_fits import FAILURES_SHOWN, ROOM, PlacedPodFits
from multisched.whatif.sandbox import DumpedCluster, SchedulerSandbox
from tests.unit.whatif.clusters import CONFIGURATION, NOW, clusters, configuration, hard_pods, small_pod

PLANNER = "PeakForecast"
HOSTNAME = "kubernetes.io/hostname"


def sandbox_of(*documents: Document) -> tuple[SchedulerSandbox, DomainWorker]:
    items = [msgspec.Raw(orjson.dumps(document)) for document in documents]
    sandbox = SchedulerSandbox(configuration(), DumpedCluster(items, NOW))
    (worker,) = sandbox.program.router.workers()
    return sandbox, worker


def standing(sandbox: SchedulerSandbox) -> list[Pod]:
    return [entry.pod for entry in sandbox.cache if entry.row >= 0]


def said_row_by_row(documents: list[Document], pod: Pod) -> Bools:
    """What every filter but the two says of each row, asked anew in a cluster that never had the pod."""
    others = [one for one in documents if one["metadata"]["uid"] != pod.uid]
    sandbox, worker = sandbox_of(*others)
    rows = sandbox.program.router.rows_of(worker).rows
    asked = sandbox.program.pods.with_policy(msgspec.structs.replace(pod, node="", nominated_node=""))
    passes = np.zeros(len(rows), np.bool_)
    for at, row in enumerate(rows.tolist()):
        alone = worker.cycle.classes.alone(asked, 1, row)
        passes[at] = alone is not None and all(
            not column.codes.any() for column in alone.filters if column.plugin.name not in (ROOM, PLANNER)
        )
    return passes


@st.composite
def crowded(draw: st.DrawFn) -> list[Document]:
    """Clusters in which pods that are hard to please stand, wherever somebody put them."""
    documents = draw(clusters())
    names = [one["metadata"]["name"] for one in documents if one["kind"] == "Node"]
    for index in range(draw(st.integers(0, 4))):
        hard = draw(hard_pods())
        hard["metadata"] |= {"name": f"hard-{index}", "uid": f"uid-hard-{index}"}
        hard["spec"]["nodeName"] = draw(st.sampled_from(names))
        hard["spec"].pop("schedulingGates", None)
        documents.append(hard)
    return documents


@settings(max_examples=settings().max_examples * 3 // 10)
@given(crowded())
def test_every_filter_except_fit_is_evaluated_on_every_node(documents: list[Document]) -> None:
    sandbox, worker = sandbox_of(*documents)
    fits = PlacedPodFits(sandbox, worker, PLANNER)
    rows = sandbox.program.router.rows_of(worker).rows
    for pod in [*standing(sandbox), *standing(sandbox)]:
        own = sandbox.cache.nodes.row_of(pod.node)
        elsewhere = rows != own  # where it stands itself nobody asks: a class's answer is one for all its pods
        np.testing.assert_array_equal(fits(pod)[elsewhere], said_row_by_row(documents, pod)[elsewhere])
    assert fits.notes() == ()
    sandbox.cache.validate()


def test_pods_with_mutual_anti_affinity_are_removed_before_evaluation() -> None:
    repelling = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "zone"}
            ]
        }
    }
    nodes = [
        node_document(name, labels={"zone": zone}) for name, zone in (("a", "1"), ("b", "1"), ("c", "2"), ("d", "3"))
    ]
    pods = [
        small_pod("web-0", node="a", affinity=repelling, labels={"app": "web"}),
        small_pod("web-1", node="c", affinity=repelling, labels={"app": "web"}),
    ]
    sandbox, worker = sandbox_of(*nodes, *pods)
    fits = PlacedPodFits(sandbox, worker, PLANNER)
    names = [node.name for _, node in sandbox.cache.nodes.live_rows()]
    found = {pod.name: [n for n, ok in zip(names, fits(pod), strict=True) if ok] for pod in standing(sandbox)}
    assert found == {"web-0": ["a", "b", "d"], "web-1": ["c", "d"]}


def test_full_node_fits_because_the_planner_counts_resources() -> None:
    nodes = [node_document("a", cpu="1"), node_document("full", cpu="100m")]
    sandbox, worker = sandbox_of(*nodes, small_pod("web", node="a", cpu="500m"))
    assert PlacedPodFits(sandbox, worker, PLANNER)(standing(sandbox)[0]).all()


def test_equal_pods_share_one_result() -> None:
    nodes = [node_document(f"n{number}") for number in range(3)]
    pods = [small_pod(f"web-{number}", node=f"n{number % 3}") for number in range(9)]
    sandbox, worker = sandbox_of(*nodes, *pods)
    fits = PlacedPodFits(sandbox, worker, PLANNER)
    answers = [fits(pod) for pod in standing(sandbox)]
    assert all(answer is answers[0] for answer in answers)


def test_cached_results_are_limited_and_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_pod_fits, "ANSWERS_MAX", 2)
    nodes = [node_document(f"n{number}", labels={"disk": "a" if number else "b"}) for number in range(3)]
    pods = [
        small_pod(f"web-{number}", node="n0", nodeSelector={"disk": "ab"[number % 2]}, cpu=f"{1 + number}m")
        for number in range(6)
    ]
    sandbox, worker = sandbox_of(*nodes, *pods)
    fits = PlacedPodFits(sandbox, worker, PLANNER)
    names = [node.name for _, node in sandbox.cache.nodes.live_rows()]
    for pod in [*standing(sandbox), *standing(sandbox)]:
        found = {name for name, fit in zip(names, fits(pod), strict=True) if fit}
        assert found == ({"n0"} if int(pod.name[-1]) % 2 else {"n1", "n2"})
        assert len(fits._answers) <= 2


class Fails:
    """Raises about pods of the team `bad`."""

    name = "Fails"
    depends_on = Dependency.NODE

    def __init__(self) -> None:
        self.reasons = ReasonTable(self.name)

    def sign(self, pod: Pod) -> str:
        return pod.labels.get("team", "")

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        if pod.labels.get("team") == "bad":
            raise ValueError("boom")
        return np.zeros(len(rows), np.uint8)


def test_pod_with_a_failed_plugin_fits_nowhere_and_the_plan_notes_it() -> None:
    text = CONFIGURATION.replace("nodes:", f"profile: {{plugins: {{enabled: [{{name: '{__name__}:Fails'}}]}}}}, nodes:")
    labels = {"team": "bad"}
    pods = [small_pod("good", node="a"), *(small_pod(f"bad-{number}", node="a", labels=labels) for number in range(2))]
    items = [msgspec.Raw(orjson.dumps(document)) for document in (node_document("a"), *pods)]
    sandbox = SchedulerSandbox(loading.parse(text, "test"), DumpedCluster(items, NOW))
    (worker,) = sandbox.program.router.workers()
    fits = PlacedPodFits(sandbox, worker, PLANNER)
    assert {pod.name: fits(pod).tolist() for pod in standing(sandbox)} == {
        "good": [True],
        "bad-0": [False],
        "bad-1": [False],
    }
    (note,) = fits.notes()
    assert note.startswith("for 2 pods no node was found because a plugin failed: Fails: ")
    assert "boom" in note


def test_first_three_failed_plugins_are_noted() -> None:
    text = CONFIGURATION.replace(
        "nodes:", f"profile: {{plugins: {{enabled: [{{name: '{__name__}:FailsEach'}}]}}}}, nodes:"
    )
    pods = [
        small_pod(f"p-{number}", node="a", labels={"team": f"team-{number}"}) for number in range(FAILURES_SHOWN + 1)
    ]
    items = [msgspec.Raw(orjson.dumps(document)) for document in (node_document("a"), *pods)]
    sandbox = SchedulerSandbox(loading.parse(text, "test"), DumpedCluster(items, NOW))
    (worker,) = sandbox.program.router.workers()
    fits = PlacedPodFits(sandbox, worker, PLANNER)
    for pod in standing(sandbox):
        assert not fits(pod).any()
    said = [note.rpartition("no room for ")[2] for note in fits.notes()]
    assert said == [f"{pod.labels['team']} (on node a)" for pod in standing(sandbox)][:FAILURES_SHOWN]


class FailsEach(Fails):
    """Raises about each pod in other words."""

    name = "FailsEach"

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        raise ValueError(f"no room for {pod.labels['team']}")


def test_pod_refused_by_pre_filter_fits_nowhere() -> None:
    """Its claim is gone by now."""
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "gone"}}]
    sandbox, worker = sandbox_of(node_document("a"), node_document("b"), small_pod("web", node="a", volumes=volumes))
    assert PlacedPodFits(sandbox, worker, PLANNER)(standing(sandbox)[0]).tolist() == [False, False]
