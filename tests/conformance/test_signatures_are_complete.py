"""What a plugin signs is all that it reads of a pod: pods that differ in anything else get the same answers.

Every plugin that ships and signs, by itself: for each field of a pod, a pod that differs in it has another signature, or
hears the same at every point, before and after other pods came and went. What the class cache makes of signatures is in
tests/unit/cycle/classes/test_deciding_by_classes.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

import pytest
from hypothesis import settings
from msgspec.structs import replace

from multisched.config.plugins import base_profile, plugin_registry
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.caching import CacheKeyPlugin, SignPlugin
from multisched.framework.context import PluginContext
from multisched.framework.cycle_state import CycleState
from multisched.framework.points import Plugin
from multisched.framework.registry import PluginUse, implements
from multisched.framework.runner import Runner
from multisched.model.decode import Decoder
from multisched.model.objects import Pod, PodSpec
from tests.conformance.answer import NullObserver, Scene, load
from tests.conformance.generate import problem
from tests.conformance.plugin_answers import Answers, Said, Signer
from tests.conformance.pod_changes import FIELDS, PodChanges

PROFILES = ("default", "forecast", "gpu", "job")
CLUSTERS = settings().max_examples * 3 // 10
FAMILIES = ("dense", "dense", "odd", "pod_affinity", "spread", "volumes", "disks", "default_spread")
OFTEN = {"labels": 8, "spec.pod_affinity": 3, "spec.spread": 3, "spec.tolerations": 3, "spec.volumes": 2, "name": 2} | {
    "spec.requests": 3,
    "spec.container_requests": 5,
}
"""Fields that are changed more often than once: what most plugins go by, in ways of which few matter."""
WORDS = (
    *("multisched.io/gpu-milli", "multisched.io/gpu-count", "500", "1000", "2", "nvidia.com/gpu"),
    *("kubernetes.io/hostname", "node.kubernetes.io/unschedulable", "Exists", "Equal", "NoSchedule", "NoExecute"),
)
"""What plugins look for and the problems do not have."""


USES: dict[str, PluginUse] = {
    f"{use.name} {dict(use.args)}": use for base in PROFILES for use in base_profile(base).plugins
}
"""What ships: each plugin of the shipped profiles, with each of its settings, once."""
REGISTRY = plugin_registry()


class Trial:
    """One cluster with a pending pod, and pods that differ from it in one field."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.scene: Scene = load(problem(FAMILIES[seed % len(FAMILIES)], seed), Decoder())
        self.cache = self.scene.cache
        self.runner = Runner(NullObserver(), lambda: 0.0)
        nodes = [node for _, node in self.cache.nodes.live_rows()]
        self.cache.set_node(replace(nodes[0], is_unschedulable=True))
        context = PluginContext("test", self.cache.nodes, WaitingPodTable(), self.cache.ledgers, self.cache.objects)
        self.make = {key: partial(REGISTRY.build, use, context) for key, use in USES.items()}
        self.plugins = {key: plugin for key, make in self.make.items() if implements(plugin := make(), SignPlugin)}
        self._tell_ledgers()
        placed = [entry.pod for entry in self.cache]
        if self.rng.random() < 0.3:  # nobody stands there yet: who matches its own terms is the first of its kind
            for pod in placed:
                self.cache.remove(pod.uid)
        self.placed = [pod.uid for pod in placed if self.cache.placed(pod.uid) is not None]
        self.pod = self.rng.choice([self.scene.pod, *(replace(one, uid="w", node="") for one in placed[:3])])
        changes = PodChanges(self.rng, [self.scene.pod, *placed], WORDS)
        self.changed = [(field, changes.of(self.pod, field)) for field in FIELDS for _ in range(OFTEN.get(field, 1))]

    def _tell_ledgers(self) -> None:
        """Those of plugins that came after the nodes and pods."""
        for row, node in self.cache.nodes.live_rows():
            self.cache.ledgers.set_node(row, node)
            for pod in self.cache.nodes.pods_on(row):
                self.cache.ledgers.restore(pod, row)

    def stir(self) -> None:
        """Pods go, and others come: copies of the pod and of those that differ from it."""
        self.rng.shuffle(self.placed)
        for uid in self.placed[: len(self.placed) // 2]:
            self.cache.remove(uid)
        nodes = [node.name for _, node in self.cache.nodes.live_rows()]
        for number, pod in enumerate((self.pod, *(pod for _, pod in self.rng.sample(self.changed, 12)))):
            self.cache.place(replace(pod, uid=f"come-{number}", node=self.rng.choice(nodes), phase="Running"))

    def differences(self) -> Iterator[str]:
        """Where a plugin that signs two pods alike says otherwise of the second than one that never saw the first."""
        kept = {key: (Signer(plugin), CycleState()) for key, plugin in self.plugins.items()}
        signed = {key: kept[key][0].signature(self.pod) for key in self.plugins}
        for key, (signer, state) in kept.items():
            yield from self._unlike(key, signer, self._answers(self.plugins[key]).of(self.pod, state), "at first")
        self.stir()
        for key, (signer, state) in kept.items():
            plugin = self.plugins[key]
            said = self._answers(plugin).of(self.pod)
            yield from self._unlike(key, signer, said, "after others came and went")
            if (
                signed[key] is not None
                and signed[key] == signer.signature(self.pod)
                and implements(plugin, CacheKeyPlugin)
            ):
                told = self._answers(plugin).of(self.pod, state)
                yield from _unless_equal(f"{key}, with what it kept of the class", said, told)

    def _answers(self, plugin: Plugin) -> Answers:
        standing = [entry for entry in self.cache if entry.row >= 0]
        return Answers(plugin, self.cache.nodes, self.scene.rows.rows, self.runner, standing)

    def _unlike(self, key: str, signer: Signer, said: Said, when: str) -> Iterator[str]:
        signed = signer.signature(self.pod)
        for field, other in self.changed if signed is not None else ():
            if signer.signature(other) == signed:
                fresh = self._answers(self.make[key]()).of(other)
                yield from _unless_equal(f"{key}, {field}, {when}", said, fresh)


def _unless_equal(what: str, said: Said, heard: Said) -> Iterator[str]:
    for point in {**said, **heard}:
        if said.get(point) != heard.get(point):
            yield f"{what}: {point}: {said.get(point)}, and {heard.get(point)}"
            return


@pytest.mark.parametrize("seed", range(CLUSTERS))
def test_pods_with_equal_signatures_get_equal_results(seed: int) -> None:
    assert list(Trial(seed).differences()) == []


def test_every_field_of_a_pod_is_varied() -> None:
    trial = Trial(0)
    assert {field for field, _ in trial.changed} == set(FIELDS)
    assert set(FIELDS) == {*Pod.__struct_fields__, *(f"spec.{name}" for name in PodSpec.__struct_fields__)} - {"spec"}
    names = {plugin.name for plugin in trial.plugins.values()}
    assert names >= {
        "InterPodAffinity",
        "PodTopologySpread",
        "NodeResourcesFit",
        "VolumeBinding",
        "GpuShare",
        "PeakForecast",
    }
