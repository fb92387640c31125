"""NodeUnschedulable, NodeName, TaintToleration, NodeAffinity, NodePorts and ImageLocality, node by node."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.framework.events import Hint
from multisched.framework.plugin_args import PluginArgsError
from multisched.framework.status import Code
from multisched.plugins.image_locality import ImageLocality, normalized
from multisched.plugins.node_affinity import NodeAffinity, NodeAffinityArgs
from multisched.plugins.node_name import NodeName
from multisched.plugins.node_ports import NodePorts, _after_delete
from multisched.plugins.node_unschedulable import NodeUnschedulable
from multisched.plugins.node_unschedulable import _after_node_change as after_cordon_change
from multisched.plugins.node_unschedulable import _after_toleration_change as after_cordon_toleration
from multisched.plugins.taint_toleration import TaintToleration
from multisched.plugins.taint_toleration import _after_node_change as after_taint_change
from multisched.testing.builders import Document, container, decode_node, decode_pod, node_document, pod_document
from tests.unit.plugins.scenes import MEBI, Scene, holding, scenes, terms

UNRESOLVABLE = Code.UNSCHEDULABLE_AND_UNRESOLVABLE
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


def document_of(scene: Scene, name: str) -> Document:
    return scene.nodes[scene.names.index(name)]


def tolerates(toleration: Document, taint: Document) -> bool:
    if toleration["effect"] not in ("", taint["effect"]) or toleration["key"] not in ("", taint["key"]):
        return False
    if toleration["operator"] == "Exists":
        return True
    return toleration["operator"] in ("", "Equal") and toleration["value"] == taint.get("value", "")


# -- NodeUnschedulable, NodeName, TaintToleration ----------------------------------------------------------------------


@given(scenes("taints"))
def test_cordoned_nodes_are_refused_unless_tolerated(scene: Scene) -> None:
    cordon = {"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"}
    is_tolerated = any(tolerates(t, cordon) for t in scene.pending["spec"]["tolerations"])

    refused = (UNRESOLVABLE, ("node(s) were unschedulable",))
    expected = {
        n: refused if document_of(scene, n)["spec"].get("unschedulable") and not is_tolerated else None
        for n in scene.names
    }
    assert scene.statuses(NodeUnschedulable()) == expected


@given(scenes("labels"), st.sampled_from(("", "n0", "n1", "nowhere")))
def test_named_node_is_the_only_feasible_one(scene: Scene, wanted: str) -> None:
    scene.pod = msgspec.structs.replace(scene.pod, node=wanted)
    refused = (UNRESOLVABLE, ("node(s) didn't match the requested node name",))
    assert scene.statuses(NodeName()) == {n: None if wanted in ("", n) else refused for n in scene.names}


@given(scenes("taints"))
def test_untolerated_hard_taints_refuse_and_soft_taints_are_counted(scene: Scene) -> None:
    statuses, scores = scene.statuses(TaintToleration()), scene.scores(TaintToleration())
    for name in scene.names:
        bad = [
            taint["effect"]
            for taint in document_of(scene, name)["spec"].get("taints", ())
            if not any(tolerates(t, taint) for t in scene.pending["spec"]["tolerations"])
        ]
        is_refused = "NoSchedule" in bad or "NoExecute" in bad
        assert statuses[name] == ((UNRESOLVABLE, ("node(s) had untolerated taint(s)",)) if is_refused else None)
        assert scores[name] == bad.count("PreferNoSchedule")


def test_soft_taint_scores_are_reversed() -> None:
    by_largest = TaintToleration.traits.normalizer
    assert by_largest is not None
    scores = by_largest.apply(np.array([0, 1, 3], np.int64), 3)
    assert scores.tolist() == [100, 67, 0]


def node(**fields: Any) -> Any:
    return decode_node(node_document("n", **fields))


TAINTED = [{"key": "k", "value": "v", "effect": "NoSchedule"}]


def test_node_change_requeues_only_if_the_node_becomes_usable() -> None:
    pod = decode_pod(pod_document("p"))
    cordoned, open_ = node(unschedulable=True), node()
    assert [after_cordon_change(pod, *pair) for pair in ((None, open_), (cordoned, open_))] == [Hint.QUEUE] * 2
    skipped = [(None, cordoned), (open_, cordoned), (open_, open_), (cordoned, cordoned)]
    assert [after_cordon_change(pod, *pair) for pair in skipped] == [Hint.SKIP] * 4

    tainted, clean = node(taints=TAINTED), node()
    assert [after_taint_change(pod, *pair) for pair in ((None, clean), (tainted, clean))] == [Hint.QUEUE] * 2
    skipped = [(None, tainted), (clean, tainted), (clean, clean), (tainted, tainted)]
    assert [after_taint_change(pod, *pair) for pair in skipped] == [Hint.SKIP] * 4


def test_matching_new_toleration_requeues_its_pod() -> None:
    right = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]
    plain, helped, other = (
        decode_pod(pod_document(name, tolerations=tolerations))
        for name, tolerations in (("p", []), ("p", right), ("other", right))
    )
    assert after_cordon_toleration(plain, plain, helped) is Hint.QUEUE
    assert after_cordon_toleration(plain, plain, plain) is Hint.SKIP
    assert after_cordon_toleration(plain, plain, other) is Hint.SKIP


# -- NodeAffinity ------------------------------------------------------------------------------------------------------


def is_integer(text: str) -> bool:
    return text.lstrip("-").isdigit()


def holds(requirement: Document, value: str | None) -> bool:
    values = requirement["values"]
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case operator:
            if value is None or not is_integer(value):
                return False
            return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])


def parses(requirement: Document) -> bool:
    values = requirement["values"]
    if any(" " in value or value.startswith("-") for value in values):  # no label values
        return False
    match requirement["operator"]:
        case "In" | "NotIn":
            return bool(values)
        case "Exists" | "DoesNotExist":
            return not values
        case "Gt" | "Lt":
            return len(values) == 1 and is_integer(values[0])
        case _:
            return False


def term_holds(term: Document, name: str, labels: dict[str, str]) -> bool:
    expressions, fields = term["matchExpressions"], term["matchFields"]
    if not (expressions or fields) or not all(parses(e) for e in expressions):
        return False
    known = {"metadata.name": name}  # any other field reads as an empty text
    return all(holds(e, labels.get(e["key"])) for e in expressions) and all(
        holds(f, known.get(f["key"], "")) for f in fields
    )


def with_affinity(scene: Scene, **affinity: Any) -> Scene:
    spec = {**scene.pending["spec"], "affinity": {"nodeAffinity": affinity}}
    return Scene(scene.nodes, scene.placed, {**scene.pending, "spec": spec})


@given(scenes("labels"), st.none() | st.lists(terms, max_size=3))
def test_selector_and_one_required_term_must_match(scene: Scene, required: list[Document] | None) -> None:
    if required is not None:
        scene = with_affinity(scene, **{REQUIRED: {"nodeSelectorTerms": required}})
    plugin, expected, view = NodeAffinity(), {}, scene.view()
    for name in scene.names:
        labels = document_of(scene, name)["metadata"]["labels"]
        selected = all(labels.get(k) == v for k, v in scene.pending["spec"]["nodeSelector"].items())
        passes = selected and (required is None or any(term_holds(t, name, labels) for t in required))
        expected[name] = None if passes else (UNRESOLVABLE, ("node(s) didn't match Pod's node affinity/selector",))
    assert scene.statuses(plugin) == expected

    result = plugin.pre_filter(view, scene.pod)
    if result.nodes is not None:
        assert {name for name, status in expected.items() if status is None} <= result.nodes
    if result.status.code is UNRESOLVABLE:
        assert result.status.reasons == ("pod affinity terms conflict",)
        assert None not in expected.values()


@given(scenes("labels"), st.lists(st.tuples(st.integers(0, 100), terms), max_size=3))
def test_matching_preferences_add_up(scene: Scene, preferred: list[tuple[int, Document]]) -> None:
    scene = with_affinity(scene, **{PREFERRED: [{"weight": w, "preference": t} for w, t in preferred]})
    plugin = NodeAffinity()
    status = plugin.pre_score(scene.view(), scene.pod, scene.rows(scene.names))
    if not preferred:
        assert status.code is Code.SKIP
    elif any(weight and not all(parses(e) for e in term["matchExpressions"]) for weight, term in preferred):
        assert status.code is Code.ERROR
    else:
        assert status.is_success
        assert scene.scores(plugin) == {
            name: sum(
                weight
                for weight, term in preferred
                if term_holds(term, name, document_of(scene, name)["metadata"]["labels"])
            )
            for name in scene.names
        }


def named(*names: str, operator: str = "In") -> Document:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": [n]} for n in names]}


@pytest.mark.parametrize(
    ("wanted", "nodes", "code"),
    [
        ([named("n0")], {"n0"}, Code.SUCCESS),
        ([named("n0"), named("n1")], {"n0", "n1"}, Code.SUCCESS),
        ([named("n0"), {"matchExpressions": [{"key": "a", "operator": "Exists"}]}], None, Code.SUCCESS),
        ([named("n0"), named("n1", operator="NotIn")], None, Code.SUCCESS),
        ([named("n0", "n1")], None, UNRESOLVABLE),
        ([named("n0", "n1"), named("n2")], {"n2"}, Code.SUCCESS),
        ([], None, Code.SUCCESS),
    ],
)
def test_node_names_limit_the_search_only_if_every_term_names_nodes(
    wanted: list[Document], nodes: set[str] | None, code: Code
) -> None:
    scene = with_affinity(
        Scene([node_document("n0")], [], pod_document("p")), **{REQUIRED: {"nodeSelectorTerms": wanted}}
    )
    result = NodeAffinity().pre_filter(scene.view(), scene.pod)
    assert (result.nodes, result.status.code) == (None if nodes is None else frozenset(nodes), code)


def ssd(key: str = "disk") -> Document:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": ["ssd"]}]}


def test_added_affinity_applies_to_all_pods_and_adds_preferences() -> None:
    added = {REQUIRED: {"nodeSelectorTerms": [ssd()]}, PREFERRED: [{"weight": 7, "preference": ssd("cache")}]}
    plugin = NodeAffinity(NodeAffinityArgs.from_config({"addedAffinity": added}))
    nodes = [
        node_document("n0", labels={"disk": "ssd"}),
        node_document("n1", labels={"disk": "ssd", "cache": "ssd"}),
        node_document("n2"),
    ]
    scene = Scene(nodes, [], pod_document("p"))

    enforced = (UNRESOLVABLE, ("node(s) didn't match scheduler-enforced node affinity",))
    assert scene.statuses(plugin) == {"n0": None, "n1": None, "n2": enforced}
    assert plugin.pre_score(scene.view(), scene.pod, scene.rows(scene.names)).is_success
    assert scene.scores(plugin) == {"n0": 0, "n1": 7, "n2": 0}

    hint = plugin._after_node_change
    with_disk, without = (decode_node(nodes[index]) for index in (0, 2))
    assert hint(scene.pod, None, with_disk) is Hint.QUEUE
    assert hint(scene.pod, without, with_disk) is Hint.QUEUE
    assert hint(scene.pod, None, without) is Hint.SKIP
    assert hint(scene.pod, with_disk, with_disk) is Hint.SKIP


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"addedAfinity": {}}, "args.addedAfinity: unknown field; did you mean addedAffinity?"),
        ({"addedAffinity": []}, "args.addedAffinity: is a list; write a mapping"),
        ({"addedAffinity": {"required": {}}}, "args.addedAffinity.required: unknown field"),
        (
            {
                "addedAffinity": {
                    REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Is"}]}]}
                }
            },
            f"args.addedAffinity.{REQUIRED}.nodeSelectorTerms[0]: is not a valid node selector term",
        ),
        (
            {
                "addedAffinity": {
                    PREFERRED: [{"weight": 1, "preference": {"matchFields": [{"key": "a", "operator": "Gt"}]}}]
                }
            },
            f"args.addedAffinity.{PREFERRED}[0].preference: is not a valid node selector term",
        ),
        (
            {"addedAffinity": {PREFERRED: [{"weight": "1"}]}},
            f"args.addedAffinity.{PREFERRED}[0].weight: Expected `int`, got `str`",
        ),
    ],
)
def test_bad_affinity_args_are_refused_with_their_path(document: Document, message: str) -> None:
    with pytest.raises(PluginArgsError) as refused:
        NodeAffinityArgs.from_config(document)
    assert message in str(refused.value)


# -- NodePorts ---------------------------------------------------------------------------------------------------------


def host_ports(pod: Document) -> list[tuple[str, str, int]]:
    found = [p for c in pod["spec"]["containers"] for p in c.get("ports", ()) if p["hostPort"]]
    return [("" if p["hostIP"] == "0.0.0.0" else p["hostIP"], p["protocol"], p["hostPort"]) for p in found]


def clash(one: tuple[str, str, int], other: tuple[str, str, int]) -> bool:
    return one[1:] == other[1:] and (one[0] == other[0] or "" in (one[0], other[0]))


@given(scenes("ports"))
def test_port_conflicts_only_on_the_same_address(scene: Scene) -> None:
    taken = (Code.UNSCHEDULABLE, ("node(s) didn't have free ports for the requested pod ports",))
    expected = {
        name: taken
        if any(clash(w, h) for w in host_ports(scene.pending) for pod in scene.on(name) for h in host_ports(pod))
        else None
        for name in scene.names
    }
    assert scene.statuses(NodePorts()) == expected
    skips = NodePorts().pre_filter(scene.view(), scene.pod).status.code is Code.SKIP
    assert skips == (not host_ports(scene.pending))


def with_port(name: str, port: int, **fields: Any) -> Any:
    return decode_pod(pod_document(name, container(ports=[{"hostPort": port}]), **fields))


def test_port_user_deletion_requeues_pods_with_the_same_port() -> None:
    waiting = with_port("waiting", 80)
    promised = msgspec.structs.replace(with_port("p", 80), nominated_node="n0")
    assert _after_delete(waiting, with_port("p", 80, node="n0"), None) is Hint.QUEUE
    assert _after_delete(waiting, promised, None) is Hint.QUEUE
    assert _after_delete(waiting, with_port("p", 80), None) is Hint.SKIP
    assert _after_delete(waiting, with_port("p", 81, node="n0"), None) is Hint.SKIP


# -- ImageLocality -----------------------------------------------------------------------------------------------------


@given(scenes("images"), st.booleans())
def test_present_images_count_by_size_and_spread(scene: Scene, has_volume: bool) -> None:
    if has_volume:
        volume = {"name": "v", "image": {"reference": "registry.example/plain"}}
        spec = {**scene.pending["spec"], "volumes": [volume, {"name": "w", "emptyDir": {}}]}
        scene = Scene(scene.nodes, scene.placed, {**scene.pending, "spec": spec})
    sizes: dict[str, int] = {}
    having: dict[str, set[str]] = {}
    for document in scene.nodes:
        for image in document["status"].get("images", ()):
            sizes.setdefault(image["names"][0], image["sizeBytes"])
            having.setdefault(image["names"][0], set()).add(document["metadata"]["name"])
    wanted = [c["image"] for c in scene.pending["spec"]["containers"]]
    most = 1000 * MEBI * len(wanted)
    wanted += ["registry.example/plain"] if has_volume else []

    expected = {}
    for name in scene.names:
        total = 0
        for image in wanted:
            tagged = image if ":" in image else f"{image}:latest"
            if name in having.get(tagged, ()):
                total += int(float(sizes[tagged]) * (len(having[tagged]) / len(scene.nodes)))
        total = min(max(total, 23 * MEBI), most)
        expected[name] = 100 * (total - 23 * MEBI) // (most - 23 * MEBI)
    assert scene.scores(ImageLocality()) == expected


@pytest.mark.parametrize(
    ("image", "tagged"),
    [
        ("app", "app:latest"),
        ("app:v1", "app:v1"),
        ("registry:5000/app", "registry:5000/app:latest"),
        ("registry:5000/app:v1", "registry:5000/app:v1"),
    ],
)
def test_registry_port_is_not_a_tag(image: str, tagged: str) -> None:
    assert normalized(image) == tagged


def test_image_size_is_that_of_the_first_node_that_has_it() -> None:
    image = "registry.example/app:v1"
    nodes = [
        node_document("n0", status=holding({image: 800 * MEBI})),
        node_document("n1", status=holding({image: 100 * MEBI})),
    ]
    scene = Scene(nodes, [], pod_document("p", container(image=image)))
    before = scene.scores(ImageLocality())
    assert before["n0"] == before["n1"] == 100 * (800 - 23) // (1000 - 23)

    scene.table.remove_node("n0")
    assert scene.table.image_users(image) == {scene.table.row_of("n1"): 800 * MEBI}
