"""Devices in the cache while everything changes: pods come and go, GPU counts flap, annotations of running pods change.

The model knows what each pod was given when it was bound. Whatever happens afterwards, that is what it holds.
"""

from __future__ import annotations

import orjson
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from domains.gpu.dialects.own import GPU_ALLOCATED, GPU_COUNT, GPU_DEVICES, GPU_MILLI
from domains.gpu.dialects.whole import GPU_INDICES, HONOURED
from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.hold import Hold
from multisched.framework.ledger import rebuild
from multisched.model.decode import ANNOTATION_BYTES_MAX, LABELS_MAX, Decoder
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import GPU, make_cache, make_node, make_pod, pod_document, row_of

OURS = "gpu-scheduler"
SERVED = frozenset({OURS})
OTHERS = {f"example.com/note-{number}": "x" for number in range(LABELS_MAX + 1)}
TAMPERED: dict[str, dict[str, str | None]] = {
    "amount removed": {GPU_MILLI: None},
    "amount lowered": {GPU_MILLI: "1", GPU_ALLOCATED: "1"},
    "all removed": {GPU_MILLI: None, GPU_COUNT: None, GPU_DEVICES: None, GPU_ALLOCATED: None},
    "other device": {GPU_DEVICES: "1"},
    "amount raised": {GPU_MILLI: "1000", GPU_ALLOCATED: "1000"},
    "too long to read": {GPU_DEVICES: "0," * ANNOTATION_BYTES_MAX, GPU_ALLOCATED: "6" * (ANNOTATION_BYTES_MAX + 1)},
    "1,025 others": dict(OTHERS),
}
"""What a namespace's user may do to a pod that runs: key -> new text, or None where it goes."""


def fraction(name: str, milli: int, count: int = 1) -> Pod:
    return make_pod(name, annotations={GPU_MILLI: str(milli), GPU_COUNT: str(count)}, scheduler=OURS)


def whole(name: str, count: int) -> Pod:
    return make_pod(name, extra={GPU: count}, scheduler=OURS)


def changed(pod: Pod, changes: dict[str, str | None]) -> Pod:
    merged: dict[str, str | None] = {**pod.annotations, **changes}
    return replace(pod, annotations={key: text for key, text in merged.items() if text is not None})


def as_decoded(pod: Pod, annotations: dict[str, str]) -> Pod:
    """Through the decoder of a program with a GPU ledger."""
    decoder = Decoder()
    decoder.keep(GpuLedger().annotations)
    own = {"namespace": pod.namespace, "uid": pod.uid}
    document = pod_document(pod.name, node=pod.node, annotations=annotations, metadata=own, schedulerName=OURS)
    return decoder.pod(orjson.dumps(document))


@pytest.mark.parametrize("changes", TAMPERED.values(), ids=TAMPERED)
@pytest.mark.parametrize("is_seen", [False, True], ids=["bound here", "seen bound"])
def test_annotation_edits_of_a_running_pod_do_not_change_its_devices(
    changes: dict[str, str | None], is_seen: bool
) -> None:
    ledger = GpuLedger(SERVED)
    cache = make_cache([make_node("n", extra={GPU: 2})], ledger)
    pod = fraction("p", 600)
    if not is_seen:
        assert cache.assume(pod, 0).annotations == {GPU_DEVICES: "0", GPU_ALLOCATED: "600"}
    bound = changed(replace(pod, node="n"), {GPU_DEVICES: "0", GPU_ALLOCATED: "600"})
    if is_seen:
        cache.place(bound)
    annotations = {key: text for key, text in {**bound.annotations, **changes}.items() if text is not None}

    cache.place(as_decoded(bound, annotations))

    assert ledger.cards(0).free_milli == [400, 1000]
    on_row = cache.nodes.pods_by_uid(0).items()
    assert dict(rebuild(ledger, [(0, cache.nodes.node(0))], [(one, 0) for _, one in on_row]).held()) == ledger.held()


def test_repeated_versions_of_a_pod_do_not_change_the_row_version() -> None:
    """Else each status update of such a pod would renew the scores of its row."""
    cache = make_cache([make_node("n", extra={GPU: 1})], GpuLedger(SERVED))
    bound = changed(replace(fraction("p", 600), node="n"), {GPU_DEVICES: "0", GPU_ALLOCATED: "600"})
    cache.place(bound)
    cache.place(changed(bound, {GPU_MILLI: "1"}))
    version = cache.nodes.version(0)

    for _ in range(3):
        cache.place(changed(bound, {GPU_MILLI: "1"}))

    assert cache.nodes.version(0) == version


def test_other_annotations_of_a_running_pod_follow_its_newest_version() -> None:
    cache = make_cache([make_node("n", extra={GPU: 1})], GpuLedger(SERVED))
    bound = changed(replace(fraction("p", 600), node="n"), {GPU_DEVICES: "0", "note": "old"})
    cache.place(bound)
    cache.place(changed(bound, {GPU_MILLI: None, "note": "new", "more": "yes"}))

    entry = cache.placed("uid-p")
    assert entry is not None
    assert entry.pod.annotations == {**bound.annotations, "note": "new", "more": "yes"}


def test_device_annotations_written_by_the_author_are_ignored() -> None:
    ledger = GpuLedger(SERVED)
    cache = make_cache([make_node("n", extra={GPU: 2})], ledger)
    forged = make_pod("p", annotations={GPU_DEVICES: "0,1", GPU_ALLOCATED: "1000"}, scheduler=OURS)
    assert cache.assume(forged, 0).annotations == {}

    cache.place(replace(forged, node="n"))

    assert ledger.cards(0).free_milli == [1000, 1000]


def test_annotations_read_by_a_ledger_are_never_dropped() -> None:
    pod = as_decoded(fraction("p", 600), {**OTHERS, GPU_MILLI: "600", GPU_COUNT: "x" * (ANNOTATION_BYTES_MAX + 1)})

    assert pod.annotations == {GPU_MILLI: "600", GPU_COUNT: "x" * ANNOTATION_BYTES_MAX}


def holds_by_node(cache: ClusterCache, ledger: GpuLedger) -> dict[str, tuple[str, Hold | None]]:
    """uid -> its node and what it holds there."""
    return {
        uid: (node.name, ledger.hold(uid, row))
        for row, node in cache.nodes.live_rows()
        for uid in cache.nodes.pods_by_uid(row)
        if ledger.hold(uid, row) is not None
    }


GPUS_MAX = 4
NAMES = ("plain", "honours")


class SettledDevices(RuleBasedStateMachine):
    """`held`: uid -> (node, device -> milli, is whole, the pod as its binding made it). Only a pod's end takes it away.

    `forged`: uid -> what its author wrote in the scheduler's place before it was bound, where no binding overwrote it.
    """

    @initialize()
    def begin(self) -> None:
        self.ledger = GpuLedger(SERVED)
        self.cache: ClusterCache = make_cache([], self.ledger)
        self.held: dict[str, tuple[str, dict[int, int], bool, Pod]] = {}
        self.forged: dict[str, dict[str, str | None]] = {}
        self.assumed: set[str] = set()
        self.gpus: dict[str, int] = {}
        self.serial = 0
        for name in NAMES:
            self.set_gpus(name, GPUS_MAX)

    @rule(name=st.sampled_from(NAMES), gpus=st.sampled_from([0, 1, 2, GPUS_MAX, GPUS_MAX]))
    def set_gpus(self, name: str, gpus: int) -> None:
        """A device plugin restarts, or the node comes back."""
        labels = {GPU_INDICES: HONOURED} if name == "honours" else {}
        self.gpus[name] = gpus
        self.cache.set_node(make_node(name, extra={GPU: gpus}, labels=labels))

    @rule(name=st.sampled_from(NAMES))
    def lose_node(self, name: str) -> None:
        if self.gpus.pop(name, None) is not None:
            self.cache.remove_node(name)

    @rule(
        name=st.sampled_from(NAMES),
        milli=st.sampled_from([0, 0, 250, 400, 600, 1000]),
        count=st.integers(1, GPUS_MAX),
        changes=st.none() | st.sampled_from(list(TAMPERED.values())),
    )
    def assume(self, name: str, milli: int, count: int, changes: dict[str, str | None] | None) -> None:
        """`changes`: what is done to the pod while it waits, before it is decided; it asks for that then."""
        if name not in self.gpus:
            return
        self.serial += 1
        pod = fraction(f"p{self.serial}", milli, count) if milli else whole(f"p{self.serial}", count)
        if changes is not None:
            pod = changed(pod, changes)
        row = row_of(self.cache, name)
        if self.cache.ledgers.fits(pod, row):
            return
        annotations = dict(self.cache.assume(pod, row).annotations)
        devices = [int(index) for index in annotations.get(GPU_DEVICES, "").split(",") if index]
        each = int(annotations.get(GPU_ALLOCATED, 1000))
        written = {key: annotations.get(key) for key in (GPU_DEVICES, GPU_ALLOCATED)}
        bound = changed(replace(pod, node=name), dict(written))
        self.forged[pod.uid] = {key: pod.annotations.get(key) for key, text in written.items() if text is None}
        self.held[pod.uid] = (name, dict.fromkeys(devices, each), bool(pod.requests), bound)
        self.assumed.add(pod.uid)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), changes=st.sampled_from([{}, *TAMPERED.values()]))
    def watch_tells(self, data: st.DataObject, changes: dict[str, str | None]) -> None:
        """A newer version of a pod: its binding, or whatever somebody wrote to it since."""
        uid = data.draw(st.sampled_from(sorted(self.held)))
        self.cache.place(changed(self.held[uid][3], {**self.forged[uid], **changes}))
        self.assumed.discard(uid)

    @precondition(lambda self: self.assumed)
    @rule(data=st.data(), changes=st.sampled_from(list(TAMPERED.values())))
    def author_changes_a_pod_on_its_way(self, data: st.DataObject, changes: dict[str, str | None]) -> None:
        """Its binding was sent already: what that carries is what the pod gets."""
        uid = data.draw(st.sampled_from(sorted(self.assumed)))
        unwritten: dict[str, str | None] = {GPU_DEVICES: None, GPU_ALLOCATED: None}
        waiting = changed(replace(self.held[uid][3], node=""), {**unwritten, **self.forged[uid], **changes})
        self.cache.revise(waiting)

    @rule(name=st.sampled_from(NAMES), changes=st.sampled_from(list(TAMPERED.values())))
    def somebody_elses_pod(self, name: str, changes: dict[str, str | None]) -> None:
        self.serial += 1
        pod = make_pod(f"p{self.serial}", annotations={GPU_MILLI: "1000"}, scheduler="default-scheduler", node=name)
        self.cache.place(changed(pod, changes))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.held)))
        if uid in self.assumed:
            assert self.cache.forget(uid)
        else:
            self.cache.remove(uid)
        self.assumed.discard(uid)
        del self.held[uid]

    @invariant()
    def no_device_is_given_out_twice(self) -> None:
        used: dict[tuple[str, int], list[tuple[int, bool]]] = {}
        for name, devices, is_whole, _ in self.held.values():
            for device, milli in devices.items():
                used.setdefault((name, device), []).append((milli, is_whole))
        for holders in used.values():
            assert sum(milli for milli, _ in holders) <= 1000
            assert len({is_whole for _, is_whole in holders}) == 1

    @invariant()
    def kinds_never_meet_on_a_node_whose_plugin_chooses(self) -> None:
        assert len({is_whole for name, devices, is_whole, _ in self.held.values() if name == "plain" and devices}) <= 1

    @invariant()
    def what_is_free_is_what_the_pods_leave(self) -> None:
        for name, gpus in self.gpus.items():
            used = [0] * GPUS_MAX
            for at, devices, _, _ in self.held.values():
                for device, milli in devices.items():
                    used[device] += milli if at == name else 0
            free = self.ledger.cards(row_of(self.cache, name)).free_milli
            assert len(free) == gpus
            if gpus == GPUS_MAX:
                assert free == [1000 - milli for milli in used]
            else:
                assert all(one <= 1000 - milli for one, milli in zip(free, used, strict=False))

    @invariant()
    def the_ledger_is_what_a_rebuild_makes_of_it(self) -> None:
        self.cache.validate()
        assert not self.cache.ledgers.broken
        placed = [(entry.pod, entry.row) for entry in self.cache if entry.row >= 0]
        fresh = rebuild(self.ledger, self.cache.nodes.live_rows(), placed)
        assert dict(fresh.held()) == dict(self.ledger.held())
        assert isinstance(fresh, GpuLedger)
        for row, _ in self.cache.nodes.live_rows():
            assert fresh.sums(row) == self.ledger.sums(row)

    @invariant()
    def a_new_process_finds_the_same(self) -> None:
        """Of the annotations as they were bound: only the scheduler may write them (deploy/base/admission.yaml)."""
        fresh = GpuLedger(SERVED)
        cache = make_cache([node for _, node in self.cache.nodes.live_rows()], fresh)
        for _, _, _, bound in self.held.values():
            cache.place(bound)
        assert holds_by_node(cache, fresh) == holds_by_node(self.cache, self.ledger)


TestSettledDevices = SettledDevices.TestCase
TestSettledDevices.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=40)
