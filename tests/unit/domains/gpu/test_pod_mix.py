"""The learned mix of pods: what counts, and when a new one is published."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from domains.gpu.dialects import PodDemands
from domains.gpu.dialects.fgd import MILLI
from domains.gpu.dialects.whole import FGD_COUNT
from domains.gpu.gpu_share import GpuShare
from domains.gpu.pod_mix import HALF_LIFE_PODS, SHAPES_MAX, PodMix
from domains.gpu.typical_pods import PodShape, typical_of
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import make_context, make_node, make_pod, make_view, row_of

SMALL, LARGE = PodShape(1000, 250, 1), PodShape(4000, 1000, 2)


def no_pods() -> Sequence[PodShape]:
    return ()


def share(mix: PodMix, shape: PodShape) -> float:
    return sum(one.share for one in mix.typical if one.shape == shape)


def test_mix_follows_placed_pods() -> None:
    mix = PodMix(None, no_pods)
    for _ in range(1000):
        mix.placed(SMALL, no_pods)

    for _ in range(HALF_LIFE_PODS):
        mix.placed(LARGE, no_pods)

    assert share(mix, LARGE) > 0.75
    assert share(mix, SMALL) > 0


def test_old_pods_lose_half_their_weight_after_the_half_life() -> None:
    mix = PodMix(None, no_pods)
    for shape in (SMALL, LARGE):
        for _ in range(HALF_LIFE_PODS):
            mix.placed(shape, no_pods)

    assert share(mix, LARGE) == pytest.approx(2 / 3, abs=0.05)


def test_running_and_pending_pods_count() -> None:
    mix = PodMix(None, lambda: [SMALL] * 60)

    mix.placed(None, lambda: [LARGE] * 40)

    assert share(mix, SMALL) == pytest.approx(0.6)
    assert share(mix, LARGE) == pytest.approx(0.4)


def test_pods_that_run_and_wait_are_shown_before_one_is_placed() -> None:
    mix = PodMix(None, lambda: [SMALL] * 60)

    shown = mix.shown(lambda: [LARGE] * 40)

    assert {one.shape: one.share for one in shown} == pytest.approx({SMALL: 0.6, LARGE: 0.4})
    assert mix.typical == ()


def test_small_changes_publish_no_new_mix() -> None:
    mix = PodMix(None, lambda: [SMALL] * 500 + [LARGE] * 500)
    mix.placed(None, no_pods)
    version = mix.version

    for _ in range(90):
        mix.placed(SMALL, no_pods)
    assert mix.version == version

    for _ in range(900):
        mix.placed(SMALL, no_pods)
    assert mix.version > version


def test_a_given_mix_never_changes() -> None:
    given = typical_of({SMALL: 1})
    mix = PodMix(given, no_pods)

    for _ in range(100):
        mix.placed(LARGE, no_pods)
    mix.adopt(typical_of({LARGE: 1}))

    assert (mix.typical, mix.version) == (given, 0)


def test_number_of_counted_shapes_is_bounded() -> None:
    mix = PodMix(None, no_pods)

    for number in range(3 * SHAPES_MAX):
        mix.placed(PodShape(number, 250, 1), no_pods)

    assert len(mix._weights) <= SHAPES_MAX + 256


def fraction(name: str, milli: int) -> Pod:
    return make_pod(name, cpu_milli=1000, annotations={MILLI: str(milli)})


def test_plugin_learns_from_running_placed_and_pending_pods() -> None:
    cache = ClusterCache()
    pending = [fraction("waits", 700)]
    context = replace(make_context(cache), pending=lambda: pending)
    plugin = GpuShare(context, {"policy": "fragmentation"})
    cache.set_node(make_node("n", extra={FGD_COUNT: 2}))
    cache.assume(fraction("runs", 400), row_of(cache, "n"), {"gpu-devices": (0,)})
    late = fraction("late", 100)
    signature = plugin.sign(late)

    plugin.choose(make_view(cache), late, row_of(cache, "n"))

    assert {one.shape.milli for one in plugin.mix.typical} == {400, 100, 700}
    assert plugin.sign(late) != signature, "scores of the mix before are not used any more"


def test_waiting_pods_of_one_workload_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each review counts thousands of them."""
    first, other = fraction("first", 700), fraction("other", 200)
    pending = [first, *(replace(first, uid=f"u-{number}") for number in range(9)), other]
    plugin = GpuShare(replace(make_context(), pending=lambda: pending), {"policy": "fragmentation"})
    read: list[str] = []
    demands = plugin._ledger.demands

    def read_demands(pod: Pod) -> PodDemands:
        read.append(pod.uid)
        return demands(pod)

    monkeypatch.setattr(plugin._ledger, "demands", read_demands)

    shares = {one.shape.milli: one.share for one in plugin.typical()}

    assert shares == pytest.approx({700: 10 / 11, 200: 1 / 11})
    assert read == [first.uid, other.uid]


def test_another_instance_adopts_what_was_learned() -> None:
    plugin, other = (GpuShare(make_context(), {"policy": "fragmentation"}) for _ in range(2))
    plugin.mix.placed(SMALL, no_pods)

    other.import_state(plugin.export_state())

    assert other.mix.typical == plugin.mix.typical != ()
