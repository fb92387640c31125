"""NodeVolumeLimits: what counts where, counted as it comes and goes, equals a walk over all pods at any time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unittest import mock

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.framework.cycle_state import CycleState
from multisched.framework.events import Hint
from multisched.framework.node_view import NodeView
from multisched.framework.points import CycleView
from multisched.framework.status import Code
from multisched.model.cluster_objects import CsiNode
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.plugins.volumes import attached_volumes
from multisched.plugins.volumes.attached_volumes import NO_LIMIT, AttachedVolumes
from multisched.plugins.volumes.node_volume_limits import NodeVolumeLimits
from multisched.state.overlay import Overlay
from multisched.testing.builders import Document, decode_node, decode_pod, node_document, pod_document
from tests.unit.plugins.scenes import Scene, put
from tests.unit.plugins.volumes.storage_documents import (
    EBS,
    attachment,
    claim,
    csi_node,
    ephemeral,
    storage_class,
    uses,
    volume,
)

FULL = "node(s) exceed max volume count"
NODE, CLAIM, VOLUME = ObjectKind.CSI_NODE, ObjectKind.PERSISTENT_VOLUME_CLAIM, ObjectKind.PERSISTENT_VOLUME
CLASS, ATTACHMENT = ObjectKind.STORAGE_CLASS, ObjectKind.VOLUME_ATTACHMENT


def scene(pending: list[Document], *placed: list[Document], limit: int | None = 2) -> Scene:
    """One node n0 with pods that have these volumes, claims a..e bound to volumes of their own."""
    pods = [pod_document(f"p{at}", node="n0", volumes=volumes) for at, volumes in enumerate(placed)]
    found = Scene([node_document("n0")], pods, pod_document("pending", volumes=pending))
    put(found.objects, NODE, csi_node("n0", ebs__csi__aws__com=limit))
    for name in "abcde":
        put(found.objects, CLAIM, claim(name, volume=f"pv-{name}"))
        put(found.objects, VOLUME, volume(f"pv-{name}", handle=f"vol-{name}"))
    return found


def verdict(found: Scene) -> tuple[Code, tuple[str, ...]] | None:
    return found.statuses(NodeVolumeLimits(found.context()))["n0"]


OVER = (Code.UNSCHEDULABLE, (FULL,))


@pytest.mark.parametrize(
    ("pending", "placed", "answer"),
    [
        (uses("c"), [uses("a")], None),
        (uses("c"), [uses("a", "b")], OVER),
        (uses("c", "d"), [uses("a")], OVER),
        (uses("b"), [uses("a", "b")], None),
        (uses("b", "c"), [uses("a", "b")], OVER),
        (uses("c"), [uses("a"), uses("a")], None),
        (uses("c"), [uses("missing", "a")], None),
        ([{"name": "v", "awsElasticBlockStore": {"volumeID": "vol-a"}}], [uses("a", "b")], None),
        ([{"name": "v", "awsElasticBlockStore": {"volumeID": "vol-x"}}], [uses("a", "b")], OVER),
        ([{"name": "v", "gcePersistentDisk": {"pdName": "x"}}], [uses("a", "b")], None),
        ([{"name": "v", "emptyDir": {}}], [uses("a", "b", "c")], None),
    ],
)
def test_node_volume_limit_is_that_of_its_driver(
    pending: list[Document], placed: list[list[Document]], answer: object
) -> None:
    assert verdict(scene(pending, *placed)) == answer


def test_driver_without_limit_and_node_without_drivers_allow_any_number() -> None:
    assert verdict(scene(uses("e"), uses("a", "b", "c", "d"), limit=None)) is None
    found = scene(uses("e"), uses("a", "b", "c", "d"))
    found.objects.remove(NODE, "", "n0")
    assert verdict(found) is None


def test_unprovisioned_claims_count_for_their_provisioner() -> None:
    found = scene(uses("new"), uses("a", "waits"))
    put(found.objects, CLASS, storage_class("fast"), storage_class("legacy", "kubernetes.io/aws-ebs"))
    put(found.objects, CLASS, storage_class("files", "kubernetes.io/azure-file"), storage_class("other", "other.io"))
    put(found.objects, CLAIM, claim("waits", storage_class="fast"))
    for name, answer in (("fast", OVER), ("legacy", OVER), ("files", None), ("other", None), ("none", None)):
        put(found.objects, CLAIM, claim("new", storage_class=name))
        assert verdict(found) == answer, name
    put(found.objects, CLAIM, claim("new"))
    assert verdict(found) is None


def test_attachments_of_deleted_pods_count_until_detached() -> None:
    found = scene(uses("c"), uses("a"))
    put(found.objects, ATTACHMENT, attachment("one", "n0", "pv-a"), attachment("inline", "n0", None))
    put(found.objects, ATTACHMENT, attachment("else", "n1", "pv-d"), attachment("lost", "n0", "pv-lost"))
    assert verdict(found) is None
    plugin = NodeVolumeLimits(found.context())
    put(found.objects, ATTACHMENT, attachment("two", "n0", "pv-b"))
    assert found.statuses(plugin)["n0"] == OVER
    found.objects.remove(ATTACHMENT, "", "two")
    assert found.statuses(plugin)["n0"] is None


def test_ephemeral_claim_of_a_placed_pod_counts_while_it_exists() -> None:
    found = scene(uses("c"), [*uses("a"), ephemeral("own")])
    plugin = NodeVolumeLimits(found.context())
    for _ in range(2):
        assert found.statuses(plugin)["n0"] is None
        put(found.objects, CLAIM, claim("p0-own", volume="pv-b", owner="uid-p0"))
        assert found.statuses(plugin)["n0"] == OVER
        found.objects.remove(CLAIM, "default", "p0-own")
    assert found.statuses(plugin)["n0"] is None


def test_unnamed_claim_is_an_error() -> None:
    assert verdict(scene(uses(""))) == (Code.ERROR, ("PersistentVolumeClaim had no name",))


def test_missing_or_foreign_claim_is_named() -> None:
    missing = scene([ephemeral("scratch")])
    sentence = 'looking up PVC default/pending-scratch: persistentvolumeclaim "pending-scratch" not found'
    assert verdict(missing) == (Code.UNSCHEDULABLE_AND_UNRESOLVABLE, (sentence,))
    put(missing.objects, CLAIM, claim("pending-scratch", owner="somebody"))
    sentence = "PVC default/pending-scratch was not created for pod default/pending (pod is not owner)"
    assert verdict(missing) == (Code.ERROR, (sentence,))
    put(missing.objects, CLAIM, claim("pending-scratch", owner="uid-pending"))
    assert verdict(missing) is None


def test_disk_unknown_to_its_driver_is_an_error_on_nodes_with_drivers() -> None:
    found = scene([{"name": "v", "awsElasticBlockStore": {"volumeID": "aws://z/nonsense"}}])
    refusal = verdict(found)
    assert refusal is not None
    assert refusal[0] is Code.ERROR
    assert refusal[1][0].startswith("converting volume(v) from inline to csi: failed to translate Kubernetes ID")
    found.objects.remove(NODE, "", "n0")
    assert verdict(found) is None


@pytest.mark.parametrize(
    ("volumes", "is_shared"),
    [
        ([], True),
        (uses("a"), True),
        (uses("a", "b"), True),
        ([{"name": "v", "awsElasticBlockStore": {"volumeID": "vol-a"}}], True),
        ([ephemeral("own")], False),
        ([*uses("a"), ephemeral("own")], False),
    ],
)
def test_pods_with_equal_volumes_share_results_unless_ephemeral(volumes: list[Document], is_shared: bool) -> None:
    plugin = NodeVolumeLimits(scene([]).context())

    def signed(name: str, uid: str, some: list[Document]) -> object:
        document = pod_document(name, volumes=some)
        document["metadata"]["uid"] = uid
        return plugin.sign(decode_pod(document))

    first = signed("p", "u", volumes)
    assert signed("p", "u", volumes) == first
    assert (signed("q", "u", volumes) == first) is is_shared, "its claim is another one"
    assert (signed("p", "w", volumes) == first) is is_shared, "it may be the claim of the pod before"
    assert signed("p", "u", [*volumes, *uses("c")]) != first


# -- at any time -------------------------------------------------------------------------------------------------------

NODES, CLAIMS, DRIVERS = ("n0", "n1", "n2"), ("a", "b", "c", "p0-own"), (EBS, "other.io")
specs = st.lists(st.sampled_from([*uses("a"), *uses("b"), *uses("c"), ephemeral("own")]), max_size=3)
disks = st.sampled_from(
    [{"name": "v", "cinder": {"volumeID": "h1"}}, {"name": "v", "awsElasticBlockStore": {"volumeID": "h1"}}]
)
volumes = st.builds(lambda some, disk: [*some, disk], specs, disks) | specs
steps = st.one_of(
    st.tuples(st.just("pod"), st.integers(0, 3), st.sampled_from(NODES), volumes),
    st.tuples(st.just("gone"), st.integers(0, 3)),
    st.tuples(
        st.just("claim"), st.sampled_from(CLAIMS), st.sampled_from(["", "v0", "v1"]), st.sampled_from([None, "s", "t"])
    ),
    st.tuples(st.just("no claim"), st.sampled_from(CLAIMS)),
    st.tuples(
        st.just("volume"), st.sampled_from(["v0", "v1"]), st.sampled_from(DRIVERS), st.sampled_from(["h0", "h1"])
    ),
    st.tuples(st.just("no volume"), st.sampled_from(["v0", "v1"])),
    st.tuples(st.just("class"), st.sampled_from("st"), st.sampled_from([EBS, "other.io", "kubernetes.io/cinder"])),
    st.tuples(st.just("csi"), st.sampled_from(NODES), st.none() | st.integers(0, 2), st.none() | st.integers(0, 2)),
    st.tuples(st.just("no csi"), st.sampled_from(NODES)),
    st.tuples(st.just("attach"), st.sampled_from("xy"), st.sampled_from(NODES), st.sampled_from(["v0", "v1"])),
    st.tuples(st.just("detach"), st.sampled_from("xy")),
    st.tuples(st.just("node"), st.sampled_from(NODES)),
)


class Cluster:
    """Takes steps, and says by a walk over everything what NodeVolumeLimits must say."""

    def __init__(self, pending: list[Document]) -> None:
        self.scene = Scene([node_document(name) for name in NODES], [], pod_document("p0", volumes=pending))
        self.where: dict[str, str] = {}

    def take(self, step: tuple[Any, ...]) -> None:
        objects, table = self.scene.objects, self.scene.table
        match step:
            case "pod", number, node, some:
                self._remove(f"p{number}")
                if (row := table.row_of(node)) is not None:
                    table.add_pod(row, decode_pod(pod_document(f"p{number}", node=node, volumes=some)))
                    self.where[f"uid-p{number}"] = node
            case "gone", number:
                self._remove(f"p{number}")
            case "claim", name, bound, class_name:
                put(objects, CLAIM, claim(name, volume=bound, storage_class=class_name, owner="uid-p0"))
            case "no claim", name:
                objects.remove(CLAIM, "default", name)
            case "volume", name, driver, handle:
                put(objects, VOLUME, volume(name, driver=driver, handle=handle))
            case "no volume", name:
                objects.remove(VOLUME, "", name)
            case "class", name, provisioner:
                put(objects, CLASS, storage_class(name, provisioner))
            case "csi", node, first, second:
                put(objects, NODE, csi_node(node, ebs__csi__aws__com=first, cinder__csi__openstack__org=second))
            case "no csi", node:
                objects.remove(NODE, "", node)
            case "attach", name, node, bound:
                put(objects, ATTACHMENT, attachment(name, node, bound))
            case "detach", name:
                objects.remove(ATTACHMENT, "", name)
            case "node", name:
                self._come_or_go(name)

    def _remove(self, name: str) -> None:
        node = self.where.pop(f"uid-{name}", None)
        row = None if node is None else self.scene.table.row_of(node)
        if row is not None:
            self.scene.table.remove_pod(row, f"uid-{name}")

    def _come_or_go(self, name: str) -> None:
        table = self.scene.table
        if table.row_of(name) is None:
            table.set_node(decode_node(node_document(name)))
            return
        for uid in [uid for uid, node in self.where.items() if node == name]:
            self._remove(uid.removeprefix("uid-"))
        table.remove_node(name)

    def settle(self) -> None:
        """What most clusters have: limits everywhere, classes, volumes, bound and unbound claims, and their users."""
        for name in NODES:
            self.take(("csi", name, 2, 1))
        for step in (("class", "s", EBS), ("class", "t", "kubernetes.io/cinder"), ("volume", "v0", EBS, "h0")):
            self.take(step)
        for name, bound in zip(CLAIMS, ("v0", "v1", "", ""), strict=True):
            self.take(("claim", name, bound, "s"))
        for number, node in enumerate(NODES):
            self.take(("pod", number, node, uses(*CLAIMS[number:3])))
        self.take(("attach", "x", "n0", "v0"))

    def must_count(self, view: NodeView, row: int) -> tuple[dict[str, int], set[tuple[str, str]], set[tuple[str, str]]]:
        """Limits by driver, what pods hold, what is attached: by a walk over the row's pods."""
        objects, node = self.scene.objects, view.node(row).name
        found = objects.csi_node(node)
        limits = {d.name: d.volumes_max for d in found.drivers if d.volumes_max is not None} if found else {}
        held = {one for pod in view.pods_on(row) for one in self._handles(pod)}
        attached = set()
        for item in objects.attachments_on(node):
            bound = objects.volume(item.volume)
            if bound is not None and bound.csi_driver:
                attached.add((item.attacher, bound.csi_handle))
        return limits, held, attached

    def must_say(self, view: NodeView, row: int) -> bool:
        """True: refused."""
        limits, held, attached = self.must_count(view, row)
        fresh = set(self._handles(self.scene.pod)) - held
        return any(
            sum(d == driver for d, _ in fresh) > 0
            and sum(d == driver for d, _ in fresh) + sum(d == driver for d, _ in held | attached) > limit
            for driver, limit in limits.items()
        )

    def _handles(self, pod: Pod) -> Iterable[tuple[str, str]]:
        objects = self.scene.objects
        for one in pod.spec.volumes:
            if one.migrated is not None:
                yield one.migrated.driver, one.migrated.handle
                continue
            found = objects.claim("default", one.claim_of(pod.name) or "")
            if found is None:
                continue
            bound = objects.volume(found.volume) if found.volume else None
            if bound is not None:
                yield bound.csi_driver, bound.csi_handle
            elif (kind := objects.storage_class(found.class_name)) is not None:
                migrated = {"kubernetes.io/cinder": "cinder.csi.openstack.org"}
                yield migrated.get(kind.provisioner, kind.provisioner), f"to be made for {found.name}"

    def says(self, plugin: NodeVolumeLimits, view: NodeView) -> list[bool]:
        rows = self.rows()
        return [bool(code) for code in plugin.filter(CycleView(view, CycleState()), self.scene.pod, rows)]

    def rows(self) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        return np.array([row for row, _ in self.scene.table.live_rows()], np.intp)


Counts = dict[tuple[int, str], tuple[int, int]]
"""(row, driver) -> (limit, volumes there), where there is a limit."""


def counted(attached: AttachedVolumes, cluster: Cluster) -> Counts:
    rows = cluster.rows()
    found: Counts = {}
    for driver in (EBS, "cinder.csi.openstack.org"):
        room = attached.room(driver, rows)
        if room is not None:
            for row, limit, used in zip(rows.tolist(), *room, strict=True):
                if limit >= 0:
                    found[row, driver] = int(limit), int(used)
    return found


def walked(cluster: Cluster) -> Counts:
    found: Counts = {}
    for row in cluster.rows().tolist():
        limits, held, attached = cluster.must_count(cluster.scene.table, row)
        for driver, limit in limits.items():
            found[row, driver] = limit, sum(one[0] == driver for one in held | attached)
    return found


def test_counting_work_per_step_is_limited() -> None:
    """Two nodes with two volumes and an attachment each: four units of work a node."""
    pods = [pod_document(f"p{name}", node=name, volumes=uses("a", "b")) for name in ("n0", "n1")]
    found = Scene([node_document("n0"), node_document("n1")], pods, pod_document("pending"))
    for name in ("n0", "n1"):
        put(found.objects, NODE, csi_node(name, ebs__csi__aws__com=5))
    for name in "abc":
        put(found.objects, CLAIM, claim(name, volume=f"pv-{name}"))
        put(found.objects, VOLUME, volume(f"pv-{name}", handle=f"vol-{name}"))
    attached = AttachedVolumes(found.table, found.objects)
    attached.renew()
    for units, pieces in ((4, 2), (5, 1)):
        for name in ("n0", "n1"):
            put(found.objects, ATTACHMENT, attachment(f"to-{name}", name, "pv-c"))
        with mock.patch.object(attached_volumes, "VOLUMES_PER_PIECE", units):
            calls = 1
            while attached.catch_up():
                calls += 1
        assert calls == pieces, units


def test_counts_survive_table_growth() -> None:
    """Two drivers: one has a limit on the old node and on the newest, the other on the old one alone."""
    pods = [pod_document("p", node="n0", volumes=uses("a"))]
    found = Scene([node_document("n0")], pods, pod_document("pending"))
    put(found.objects, NODE, csi_node("n0", ebs__csi__aws__com=5, other=7))
    put(found.objects, CLAIM, claim("a", volume="pv-a"))
    put(found.objects, VOLUME, volume("pv-a", handle="vol-a"))
    attached = AttachedVolumes(found.table, found.objects)
    attached.renew()
    capacity = len(found.table.pod_count)
    names = [f"late-{number}" for number in range(2 * capacity)]
    for name in names:
        found.table.set_node(decode_node(node_document(name)))
    assert len(found.table.pod_count) > capacity

    rows = np.array([row for name in ("n0", names[-1]) if (row := found.table.row_of(name)) is not None], np.intp)
    for driver, limit, used in ((EBS, 5, 1), ("other", 7, 0)):
        room = attached.room(driver, rows)
        assert room is not None
        assert [side.tolist() for side in room] == [[limit, NO_LIMIT], [used, 0]], "not counted yet"
    put(found.objects, NODE, csi_node(names[-1], ebs__csi__aws__com=9))
    attached.renew()
    for driver, limits, used in ((EBS, [5, 9], 1), ("other", [7, NO_LIMIT], 0)):
        room = attached.room(driver, rows)
        assert room is not None
        assert [side.tolist() for side in room] == [limits, [used, 0]]
    assert attached.room("unknown", rows) is None


@given(volumes, st.lists(steps, max_size=25), st.lists(st.tuples(st.sampled_from(NODES), volumes), max_size=3))
def test_volume_counts_equal_a_recount_after_any_events(
    pending: list[Document], drawn: list[tuple[Any, ...]], in_thought: list[tuple[str, list[Document]]]
) -> None:
    cluster = Cluster(pending)
    cluster.settle()
    plugin = NodeVolumeLimits(cluster.scene.context())
    attached = AttachedVolumes(cluster.scene.table, cluster.scene.objects)
    behind = AttachedVolumes(cluster.scene.table, cluster.scene.objects)
    for step in drawn:
        if step[0] == "no claim" and step[1] in [one.claim_of("p0") for one in cluster.scene.pod.spec.volumes]:
            continue
        cluster.take(step)
        table = cluster.scene.table
        assert cluster.says(plugin, table) == [cluster.must_say(table, int(row)) for row in cluster.rows()]
        attached.renew()
        assert counted(attached, cluster) == walked(cluster)
        with mock.patch.object(attached_volumes, "VOLUMES_PER_PIECE", 1):  # a row at a time
            behind.catch_up()
    while behind.catch_up():
        pass
    assert counted(behind, cluster) == walked(cluster)
    overlay = Overlay(cluster.scene.table)
    for number, (node, some) in enumerate(in_thought):
        if (row := cluster.scene.table.row_of(node)) is not None:
            overlay.add_pod(row, decode_pod(pod_document(f"thought{number}", node=node, volumes=some)))
            if number and overlay.pods_on(row):
                overlay.remove_pod(row, overlay.pods_on(row)[0].uid)
    assert cluster.says(plugin, overlay) == [cluster.must_say(overlay, int(row)) for row in cluster.rows()]


# -- what wakes whom ---------------------------------------------------------------------------------------------------


def hint(event: str, pod: Pod, old: Any, new: Any) -> Hint:
    """What the plugin's registration under this label says."""
    (found,) = [r for r in NodeVolumeLimits(scene([]).context()).events_to_register() if r.event.label == event]
    return Hint.QUEUE if found.hint is None else found.hint(pod, old, new)


def decoded(kind: ObjectKind, document: Document) -> Any:
    return kind.definition.decode(orjson.dumps(document))


def test_only_events_that_free_or_add_volume_slots_requeue() -> None:
    waiting = decode_pod(pod_document("p", volumes=[*uses("a"), ephemeral("own")]))
    plain, with_claim = (pod_document("q", node="n0", volumes=some) for some in ([], uses("x")))
    pending = pod_document("q", volumes=uses("x"))
    assert hint("CSINodeAdd", waiting, None, CsiNode(name="n0")) is Hint.QUEUE
    for old, new, answer in ((1, 2, Hint.QUEUE), (2, 1, Hint.SKIP), (2, 2, Hint.SKIP), (None, 3, Hint.QUEUE)):
        before, after = (decoded(NODE, csi_node("n0", d=count)) for count in (old, new))
        assert hint("CSINodeUpdate", waiting, before, after) is answer
    assert hint("AssignedPodDelete", waiting, decode_pod(with_claim), None) is Hint.QUEUE
    assert hint("AssignedPodDelete", waiting, decode_pod(plain), None) is Hint.SKIP
    assert hint("AssignedPodDelete", waiting, decode_pod(pending), None) is Hint.SKIP
    for name, answer in (("a", Hint.QUEUE), ("p-own", Hint.QUEUE), ("b", Hint.SKIP)):
        assert hint("PersistentVolumeClaimAdd", waiting, None, decoded(CLAIM, claim(name))) is answer
    elsewhere = decoded(CLAIM, claim("a", namespace="other"))
    assert hint("PersistentVolumeClaimAdd", waiting, None, elsewhere) is Hint.SKIP
    detached = decoded(ATTACHMENT, attachment("x", "n0", "pv"))
    assert hint("VolumeAttachmentDelete", waiting, detached, None) is Hint.QUEUE
    own = decode_pod(pod_document("p", volumes=[ephemeral("own")]))
    assert hint("VolumeAttachmentDelete", own, detached, None) is Hint.QUEUE
    inline = decode_pod(pod_document("p", volumes=[{"name": "v", "cinder": {"volumeID": "c"}}]))
    assert hint("VolumeAttachmentDelete", inline, detached, None) is Hint.SKIP
