"""VolumeRestrictions, VolumeZone and NodeDeclaredFeatures by their rules, and what wakes the pods they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.framework.context import PluginContext
from multisched.framework.events import EventRegistration, Hint
from multisched.framework.points import EnqueueExtensions
from multisched.framework.runner import Runner
from multisched.framework.status import SKIP, Code, Status
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.plugins.node_declared_features import NodeDeclaredFeatures
from multisched.plugins.volumes.node_volume_limits import NodeVolumeLimits
from multisched.plugins.volumes.volume_binding import VolumeBinding
from multisched.plugins.volumes.volume_restrictions import VolumeRestrictions
from multisched.plugins.volumes.volume_zone import VolumeZone
from multisched.state.overlay import OverlayCycle
from multisched.testing.builders import Document, container, decode_node, decode_pod, node_document, pod_document
from tests.unit.plugins.scenes import Scene, put
from tests.unit.plugins.volumes.storage_documents import claim, ephemeral, storage_class, uses, volume

NO_DISK = "node(s) had no available disk"
IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
CLAIM, VOLUME, CLASS = ObjectKind.PERSISTENT_VOLUME_CLAIM, ObjectKind.PERSISTENT_VOLUME, ObjectKind.STORAGE_CLASS
UNRESOLVABLE = Code.UNSCHEDULABLE_AND_UNRESOLVABLE


def hint(plugin: EnqueueExtensions, label: str, pod: Pod, old: Any, new: Any) -> Hint:
    """What the plugin's registration under this label says."""
    found: list[EventRegistration] = [r for r in plugin.events_to_register() if r.event.label == label]
    assert len(found) == 1, label
    return Hint.QUEUE if found[0].hint is None else found[0].hint(pod, old, new)


def decoded(kind: ObjectKind, document: Document) -> Any:
    return kind.definition.decode(orjson.dumps(document))


@pytest.mark.parametrize("make", [VolumeRestrictions, NodeVolumeLimits, VolumeBinding, VolumeZone])
def test_pod_with_claims_waits_while_a_kind_is_unreadable(
    make: Callable[[PluginContext], VolumeRestrictions | NodeVolumeLimits | VolumeBinding | VolumeZone],
) -> None:
    """What is not known is not said to be missing, and the answer is another one once it is known (also to warm classes)."""
    scene = Scene([node_document("n0")], [], pod_document("p", volumes=uses("c")))
    put(scene.objects, CLAIM, claim("c", storage_class="late"))
    put(scene.objects, CLASS, storage_class("late"))
    plugin, view = make(scene.context()), scene.view()
    plain = decode_pod(pod_document("plain"))
    before, readable = plugin.pre_filter(view, scene.pod), plugin.cache_key(view, scene.pod)
    for kind in plugin.traits.reads_objects:
        scene.objects.set_unreadable(kind, "403 Forbidden: no")
        words = f"{kind.value} objects cannot be read by the scheduler: 403 Forbidden: no"
        assert plugin.pre_filter(view, scene.pod).status == Status(UNRESOLVABLE, plugin.name, (words,))
        assert plugin.pre_filter(view, plain).status is SKIP
        hidden = plugin.cache_key(view, scene.pod)
        scene.objects.set_unreadable(kind, "")
        assert plugin.pre_filter(view, scene.pod) == before
        assert hidden not in (readable, plugin.cache_key(view, scene.pod))


# -- VolumeRestrictions ------------------------------------------------------------------------------------------------


def gce(name: str, *, read_only: bool = False) -> Document:
    return {"name": name, "gcePersistentDisk": {"pdName": name, "readOnly": read_only}}


def restricted(pending: list[Document], *placed: list[Document]) -> Scene:
    """Nodes n0.. with one pod each that has these volumes, and one empty node."""
    pods = [pod_document(f"p{at}", node=f"n{at}", volumes=some) for at, some in enumerate(placed)]
    nodes = [node_document(f"n{at}") for at in range(len(placed) + 1)]
    scene = Scene(nodes, pods, pod_document("pending", volumes=pending))
    for name, modes in (("one", ["ReadWriteOncePod"]), ("two", ["ReadWriteOncePod"]), ("many", ["ReadWriteMany"])):
        put(scene.objects, CLAIM, claim(name, modes=modes))
    return scene


def test_disk_in_use_excludes_others_from_its_node_only() -> None:
    scene = restricted([gce("d"), gce("e", read_only=True)], [gce("d")], [gce("e", read_only=True)], [gce("e")])
    refusal = (Code.UNSCHEDULABLE, (NO_DISK,))
    assert scene.statuses(VolumeRestrictions(scene.context())) == {"n0": refusal, "n1": None, "n2": refusal, "n3": None}


def test_single_pod_claim_excludes_others_from_every_node() -> None:
    scene = restricted([*uses("one"), gce("d")], uses("one"), [gce("d")])
    in_use, no_disk = (Code.UNSCHEDULABLE, (IN_USE,)), (Code.UNSCHEDULABLE, (NO_DISK,))
    assert scene.statuses(VolumeRestrictions(scene.context())) == {"n0": in_use, "n1": no_disk, "n2": in_use}
    free = restricted(uses("two", "many"), uses("one", "many"))
    assert set(free.statuses(VolumeRestrictions(free.context())).values()) == {None}


def test_pod_without_possible_conflicts_is_skipped() -> None:
    for pending in ([], uses("two", "many"), [ephemeral("own")], [{"name": "v", "cinder": {"volumeID": "c"}}]):
        scene = restricted(pending, uses("one", "many"))
        assert VolumeRestrictions(scene.context()).pre_filter(scene.view(), scene.pod).status is SKIP


def test_missing_claim_refuses_the_pod_with_the_claim_name() -> None:
    scene = restricted(uses("many", "nowhere"))
    status = VolumeRestrictions(scene.context()).pre_filter(scene.view(), scene.pod).status
    assert (status.code, status.message) == (UNRESOLVABLE, 'persistentvolumeclaim "nowhere" not found')


class NobodyWatches:
    """A PluginObserver that must not hear of a failure."""

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None:
        pass

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        raise AssertionError(error)


def test_preempting_a_claim_user_frees_it_only_in_the_dry_run() -> None:
    scene = restricted(uses("one"), uses("one"), uses("many"))
    plugin, view = VolumeRestrictions(scene.context()), scene.view()
    assert plugin.pre_filter(view, scene.pod).status.is_success
    overlay = OverlayCycle(scene.table, view.state, scene.pod, [plugin], Runner(NobodyWatches(), lambda: 0.0), 1)
    rows = scene.rows(scene.names)
    user = scene.table.pods_on(int(rows[0]))[0]
    assert overlay.remove_pod(user, int(rows[0])).is_success
    assert not plugin.filter(overlay.view, scene.pod, rows).any()
    assert overlay.add_pod(user, int(rows[0])).is_success
    assert plugin.filter(overlay.view, scene.pod, rows).all()
    assert plugin.filter(view, scene.pod, rows).all()


def test_cache_key_changes_with_claims_and_their_access() -> None:
    scene = restricted(uses("new"))
    plugin = VolumeRestrictions(scene.context())
    seen = [plugin.cache_key(scene.view(), scene.pod)]
    for modes in (["ReadWriteOnce"], ["ReadWriteOncePod"]):
        put(scene.objects, CLAIM, claim("another", modes=modes))
        assert plugin.cache_key(scene.view(), scene.pod) == seen[-1]
        put(scene.objects, CLAIM, claim("new", modes=modes))
        assert plugin.cache_key(scene.view(), scene.pod) not in seen
        seen.append(plugin.cache_key(scene.view(), scene.pod))


def test_only_events_that_free_a_disk_or_claim_requeue() -> None:
    plugin = VolumeRestrictions(restricted([]).context())
    waiting = decode_pod(pod_document("p", volumes=[gce("d"), *uses("one")]))

    def after_delete(*volumes: Document, namespace: str = "default") -> Hint:
        gone = pod_document("q", node="n0", volumes=list(volumes))
        gone["metadata"]["namespace"] = namespace
        return hint(plugin, "AssignedPodDelete", waiting, decode_pod(gone), None)

    assert after_delete(gce("d")) is after_delete(*uses("one")) is Hint.QUEUE
    assert after_delete(gce("e")) is after_delete(*uses("two")) is after_delete() is Hint.SKIP
    assert after_delete(*uses("one"), namespace="other") is Hint.SKIP
    assert after_delete(gce("d"), namespace="other") is Hint.QUEUE
    added = {name: decoded(CLAIM, claim(name)) for name in ("one", "two")}
    assert hint(plugin, "PersistentVolumeClaimAdd", waiting, None, added["one"]) is Hint.QUEUE
    assert hint(plugin, "PersistentVolumeClaimAdd", waiting, None, added["two"]) is Hint.SKIP
    assert hint(plugin, "NodeAdd", waiting, None, decode_node(node_document("n"))) is Hint.QUEUE


# -- VolumeZone --------------------------------------------------------------------------------------------------------


ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE, OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
ELSEWHERE = (UNRESOLVABLE, ("node(s) had no available volume zone",))


def zoned(volume_labels: dict[str, str], *node_labels: dict[str, str]) -> Scene:
    nodes = [node_document(f"n{at}", labels=labels) for at, labels in enumerate(node_labels)]
    scene = Scene(nodes, [], pod_document("pending", volumes=uses("c")))
    put(scene.objects, CLAIM, claim("c", volume="pv"))
    put(scene.objects, VOLUME, volume("pv", volume_labels, handle="h"))
    return scene


@pytest.mark.parametrize(
    ("volume_labels", "node_labels", "passes"),
    [
        ({ZONE: "a"}, {ZONE: "a"}, True),
        ({ZONE: "a"}, {ZONE: "b"}, False),
        ({ZONE: "a"}, {"disk": "ssd"}, True),
        ({ZONE: "a"}, {REGION: "r"}, False),
        ({ZONE: "a__b"}, {ZONE: "b"}, True),
        ({ZONE: "a__ b "}, {ZONE: "b"}, True),
        ({ZONE: "a____b"}, {ZONE: "c"}, True),
        ({OLD_ZONE: "a"}, {ZONE: "a"}, True),
        ({OLD_ZONE: "a"}, {ZONE: "b"}, False),
        ({OLD_ZONE: "a"}, {OLD_ZONE: "b", ZONE: "a"}, False),
        ({ZONE: "a"}, {OLD_ZONE: "a"}, False),
        ({ZONE: "a", REGION: "r"}, {ZONE: "a", REGION: "s"}, False),
        ({ZONE: "a", OLD_REGION: "r"}, {ZONE: "a", REGION: "r"}, True),
        ({"other": "a"}, {ZONE: "b"}, True),
    ],
)
def test_volume_restricts_its_pods_to_its_zones(
    volume_labels: dict[str, str], node_labels: dict[str, str], passes: bool
) -> None:
    scene = zoned(volume_labels, node_labels)
    assert scene.statuses(VolumeZone(scene.context())) == {"n0": None if passes else ELSEWHERE}


places = st.dictionaries(st.sampled_from([ZONE, REGION, OLD_ZONE, OLD_REGION]), st.sampled_from("abc"), max_size=3)
many_places = st.dictionaries(
    st.sampled_from([ZONE, REGION, OLD_ZONE, OLD_REGION]), st.sampled_from(["a", "b", "a__b", "b__c", "__"]), max_size=3
)


@given(many_places, st.lists(places, min_size=1, max_size=5))
def test_vectorised_zones_equal_the_rule_per_node(wanted: dict[str, str], nodes: list[dict[str, str]]) -> None:
    def fits(labels: dict[str, str]) -> bool:
        newer = {OLD_ZONE: ZONE, OLD_REGION: REGION}
        for key, value in wanted.items():
            values = value.split("__")
            if labels and "" not in values and labels.get(key, labels.get(newer.get(key, key))) not in values:
                return False
        return True

    scene = zoned(wanted, *nodes)
    found = scene.statuses(VolumeZone(scene.context()))
    assert found == {f"n{at}": None if fits(labels) else ELSEWHERE for at, labels in enumerate(nodes)}


def test_unbound_claim_is_refused_unless_it_waits_for_its_first_consumer() -> None:
    scene = zoned({ZONE: "a"}, {ZONE: "b"})
    put(scene.objects, CLASS, storage_class("late"), storage_class("odd", mode=None))
    put(scene.objects, CLASS, storage_class("now", mode="Immediate"))

    def answer(document: Document | None) -> str:
        scene.objects.remove(CLAIM, "default", "c")
        if document is not None:
            put(scene.objects, CLAIM, document)
        status = VolumeZone(scene.context()).pre_filter(scene.view(), scene.pod).status
        assert status.code in (Code.SKIP, UNRESOLVABLE)
        return status.message

    assert answer(None) == 'persistentvolumeclaim "c" not found'
    assert answer(claim("c")) == "PersistentVolumeClaim had no pv name and storageClass name"
    assert answer(claim("c", storage_class="gone")) == 'storageclass.storage.k8s.io "gone" not found'
    assert answer(claim("c", storage_class="odd")) == 'VolumeBindingMode not set for StorageClass "odd"'
    assert answer(claim("c", storage_class="now")) == "PersistentVolume had no name"
    assert answer(claim("c", storage_class="late")) == ""
    assert answer(claim("c", volume="lost")) == 'persistentvolume "lost" not found'


def test_cache_key_changes_exactly_with_the_result() -> None:
    """A claim that comes, waits for its class, and gets its volume; what concerns other claims changes nothing."""
    scene = zoned({ZONE: "a"}, {ZONE: "b"})
    objects, plugin = scene.objects, VolumeZone(scene.context())
    for kind, name in ((CLAIM, "c"), (VOLUME, "pv")):
        objects.remove(kind, "default" if kind is CLAIM else "", name)

    def cache_key() -> object:
        return plugin.cache_key(scene.view(), scene.pod)

    seen = [cache_key()]
    for kind, document in (
        (CLAIM, claim("c", storage_class="late")),
        (CLASS, storage_class("late", mode="Immediate")),
        (CLASS, storage_class("late")),
        (CLAIM, claim("c", storage_class="late", volume="pv")),
        (VOLUME, volume("pv", {ZONE: "a"}, handle="h")),
        (VOLUME, volume("pv", {ZONE: "b"}, handle="h")),
    ):
        for other in (claim("x", storage_class="other"), claim("x", storage_class="late", volume="px")):
            put(objects, CLAIM, other)
        put(objects, CLASS, storage_class("other"))
        put(objects, VOLUME, volume("px", {ZONE: "c"}, handle="x"))
        assert cache_key() == seen[-1]
        put(objects, kind, document)
        assert cache_key() not in seen
        seen.append(cache_key())
    objects.remove(CLASS, "", "late")
    assert cache_key() == seen[-1], "a bound claim's class is not looked at"
    for some in ([], [ephemeral("own")]):
        assert plugin.cache_key(scene.view(), decode_pod(pod_document("other", volumes=some))) is None


def test_irrelevant_volume_or_class_leaves_the_pod_parked() -> None:
    scene = zoned({ZONE: "a"}, {ZONE: "b"})
    plugin, waiting = VolumeZone(scene.context()), scene.pod
    here, there, again = (decoded(VOLUME, volume("pv", {ZONE: zone}, handle=h)) for zone, h in ("ah", "bh", "ai"))
    assert hint(plugin, "PersistentVolumeChange", waiting, None, here) is Hint.QUEUE
    assert hint(plugin, "PersistentVolumeChange", waiting, here, there) is Hint.QUEUE
    assert hint(plugin, "PersistentVolumeChange", waiting, here, again) is Hint.SKIP
    late, now = (decoded(CLASS, storage_class("s", mode=mode)) for mode in ("WaitForFirstConsumer", "Immediate"))
    assert hint(plugin, "StorageClassAdd", waiting, None, late) is Hint.QUEUE
    assert hint(plugin, "StorageClassAdd", waiting, None, now) is Hint.SKIP
    for name, answer in (("c", Hint.QUEUE), ("d", Hint.SKIP)):
        assert hint(plugin, "PersistentVolumeClaimChange", waiting, None, decoded(CLAIM, claim(name))) is answer
    assert hint(plugin, "NodeAddOrLabel", waiting, None, decode_node(node_document("n"))) is Hint.QUEUE


# -- NodeDeclaredFeatures ----------------------------------------------------------------------------------------------

RESTARTS, USERS = "RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport"


def declaring(name: str, *features: str) -> Document:
    found = node_document(name)
    found["status"]["declaredFeatures"] = list(features)
    return found


def restarting() -> Document:
    return {**container(), "restartPolicyRules": [{"action": "RestartAllContainers"}]}


@pytest.mark.parametrize(
    ("pending", "passing"),
    [
        (pod_document("p"), ["n0", "n1", "n2"]),
        (pod_document("p", restarting()), ["n1", "n2"]),
        (pod_document("p", initContainers=[restarting()]), ["n1", "n2"]),
        (pod_document("p", hostNetwork=True, hostUsers=False), ["n2"]),
        (pod_document("p", hostNetwork=True), ["n0", "n1", "n2"]),
        (pod_document("p", hostUsers=False), ["n0", "n1", "n2"]),
        (pod_document("p", restarting(), hostNetwork=True, hostUsers=False), ["n2"]),
    ],
)
def test_declared_features_restrict_the_pod_to_nodes_that_have_them(pending: Document, passing: list[str]) -> None:
    nodes = [declaring("n0"), declaring("n1", "Unheard", RESTARTS), declaring("n2", RESTARTS, USERS)]
    scene = Scene(nodes, [], pending)
    refusal = (UNRESOLVABLE, ("node(s) didn't match Pod's required features",))
    found = scene.statuses(NodeDeclaredFeatures())
    assert found == {name: None if name in passing else refusal for name in ("n0", "n1", "n2")}


def test_only_a_node_with_the_missing_feature_requeues() -> None:
    plugin, waiting = NodeDeclaredFeatures(), decode_pod(pod_document("p", restarting()))
    without, having = decode_node(declaring("n")), decode_node(declaring("n", RESTARTS))
    for old, new, answer in (
        (None, having, Hint.QUEUE),
        (without, having, Hint.QUEUE),
        (having, having, Hint.SKIP),
        (None, without, Hint.SKIP),
    ):
        assert hint(plugin, "NodeAddOrDeclaredFeature", waiting, old, new) is answer
    plain = decode_pod(pod_document("p"))
    assert hint(plugin, "PodUpdate", waiting, waiting, plain) is Hint.QUEUE
    assert hint(plugin, "PodUpdate", waiting, waiting, waiting) is Hint.SKIP


def test_plugins_without_effect_skip_a_plain_pod() -> None:
    scene = restricted([])
    for plugin in (VolumeRestrictions(scene.context()), VolumeZone(scene.context()), NodeDeclaredFeatures()):
        assert plugin.pre_filter(scene.view(), scene.pod).status is SKIP
