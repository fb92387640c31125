"""Each vectorised plugin against its plain reference (tests/reference), on random clusters that have everything.

Every plugin is asked by itself, whatever the plugins before it said: PreFilter, Filter about all nodes and about some,
Filter on an overlay with a pod taken away and one added, and the final scores of some nodes. DefaultPreemption, which asks
all the others, is compared by the whole answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.framework.cycle_state import CycleState
from multisched.framework.node_view import Rows
from multisched.framework.points import (
    CycleView,
    FilterPlugin,
    PreFilterExtensions,
    PreFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
)
from multisched.framework.registry import implements
from multisched.framework.status import Code, Status
from multisched.framework.traits import traits_of
from multisched.model.decode import Decoder
from multisched.model.objects import Pod
from multisched.state.overlay import OverlayCycle
from tests.conformance.answer import Scene, answer, load
from tests.conformance.generate import problem
from tests.conformance.vectors import differences
from tests.reference.answer import answer as reference_answer
from tests.reference.scheduler import make_profile
from tests.reference.world import SKIP, PodState, Reference, Refused, Skip, World, make_world

Json = dict[str, Any]
Verdict = tuple[str, tuple[str, ...]] | None
"""Code and reasons; None passes. Scalar resources come in no order, so the reasons do not either."""

DECODER = Decoder()
SEEDS = st.integers(0, 2**32 - 1)


class Trial:
    """One plugin on one cluster, asked in both ways."""

    def __init__(self, scene: Scene, world: World, plugin: Any, reference: Reference, pod: PodState) -> None:
        self.scene = scene
        self.world = world
        self.plugin = plugin
        self.reference = reference
        self.pod = pod
        self.nodes = list(world.nodes)
        self.view = CycleView(scene.cache.nodes, CycleState())

    def rows(self, nodes: Sequence[str]) -> Rows:
        found = [self.scene.cache.nodes.row_of(node) for node in nodes]
        return np.array(sorted(row for row in found if row is not None), np.intp)

    def differences(self, draw: Random) -> Iterator[str]:
        """What the two say differently, in words."""
        told = self._pre_filter()
        state = self.reference.prepare(self.world, self.pod)
        if isinstance(told, tuple) or isinstance(state, Refused):
            expected = _verdict_of(state) if isinstance(state, Refused) else "no refusal"
            yield from _unless_equal("PreFilter", told, expected)
            return
        names = state if isinstance(state, frozenset) else None
        yield from _unless_equal("PreFilter's nodes", told if isinstance(told, frozenset) else None, names)
        if self.reference.filters and implements(self.plugin, FilterPlugin):
            yield from self._filter_differences(draw, is_skipped=told is SKIP, state=state)
        if self.reference.scores and implements(self.plugin, ScorePlugin):
            some = [node for node in self.nodes if draw.random() < 0.7] or self.nodes
            yield from _unless_equal("Score", self._scores(some), self._expected_scores(some))

    # -- PreFilter and Filter --------------------------------------------------------------------------------------

    def _pre_filter(self) -> Verdict | Skip | frozenset[str]:
        if not implements(self.plugin, PreFilterPlugin):
            return None
        result = self.scene.runner.pre_filter(self.plugin, self.view, self.scene.pod)
        if result.status.code is Code.SKIP:
            return SKIP
        return _verdict(result.status) if not result.status.is_success else result.nodes

    def _filter_differences(self, draw: Random, *, is_skipped: bool, state: Any) -> Iterator[str]:
        expected = {n: None if state is SKIP else self._expected(self.world, state, n) for n in self.nodes}
        found = dict.fromkeys(self.nodes) if is_skipped else self._filter(self.view, self.nodes)
        yield from _unless_equal("Filter", found, expected)
        if is_skipped or state is SKIP:
            return
        some = [node for node in self.nodes if draw.random() < 0.5]
        yield from _unless_equal("Filter of some", self._filter(self.view, some), {n: expected[n] for n in some})
        node = draw.choice(self.nodes)
        yield from self._overlay_differences(node, draw, state)

    def _filter(self, view: CycleView, nodes: Sequence[str]) -> dict[str, Verdict]:
        rows = self.rows(nodes)
        codes = self.scene.runner.filter(self.plugin, view, self.scene.pod, rows)
        return {
            self.scene.cache.nodes.node(int(row)).name: _verdict(self.plugin.reasons.status(int(code)))
            if code
            else None
            for row, code in zip(rows, codes, strict=True)
        }

    def _expected(self, world: World, state: Any, node: str) -> Verdict:
        refused = self.reference.refusal(state, world, self.pod, node)
        return None if refused is None else _verdict_of(refused)

    def _overlay_differences(self, node: str, draw: Random, state: Any) -> Iterator[str]:
        """One pod leaves the node, a pod of another node comes: what preemption and nominated pods do."""
        table = self.scene.cache.nodes
        row = int(self.rows([node])[0])
        extensions = [self.plugin] if implements(self.plugin, PreFilterExtensions) else []
        overlay = OverlayCycle(table, self.view.state, self.scene.pod, extensions, self.scene.runner, 1)
        world = self.world
        leaving = draw.choice(world.on(node)) if world.on(node) else None
        if leaving is not None:
            overlay.remove_pod(next(p for p in table.pods_on(row) if p.uid == leaving.uid), row)
            world = world.without_pod(leaving, node)
            state = self.reference.moved(state, world, self.pod, leaving, node, -1)
        pod, coming = self._coming(node, draw)
        overlay.add_pod(pod, row)
        world = world.with_pod(coming, node)
        state = self.reference.moved(state, world, self.pod, coming, node, 1)
        found = self._filter(overlay.view, [node])
        yield from _unless_equal("Filter on an overlay", found, {node: self._expected(world, state, node)})

    def _coming(self, node: str, draw: Random) -> tuple[Pod, PodState]:
        """A pod of another node, or the pending pod's twin, which wants all that it wants."""
        table = self.scene.cache.nodes
        others = [p for other in self.nodes if other != node for p in self.world.on(other)]
        if others and draw.random() < 0.5:
            other = draw.choice(others)
            from_row = int(self.rows([other.node])[0])
            return next(p for p in table.pods_on(from_row) if p.uid == other.uid), other
        twin = {**self.pod.document, "spec": {**self.pod.document["spec"], "nodeName": node}}
        twin["metadata"] = {**twin["metadata"], "name": "twin", "uid": "uid-twin"}
        return DECODER.pod(orjson.dumps(twin)), PodState(twin)

    # -- Score -----------------------------------------------------------------------------------------------------

    def _expected_scores(self, nodes: Sequence[str]) -> dict[str, int] | Skip:
        return self.reference.scored(self.world, self.pod, nodes)

    def _scores(self, nodes: Sequence[str]) -> dict[str, int] | Skip:
        runner, pod, rows = self.scene.runner, self.scene.pod, self.rows(nodes)
        has_pre_score = implements(self.plugin, PreScorePlugin)
        if has_pre_score and runner.pre_score(self.plugin, self.view, pod, rows).code is Code.SKIP:
            return SKIP
        raw = runner.score(self.plugin, self.view, pod, rows)
        by_largest = traits_of(self.plugin).normalizer
        if by_largest is not None:
            raw = by_largest.apply(raw, int(raw.max()))
        elif self.plugin.name in self.scene.plugins.normalize:
            raw = runner.normalize(self.scene.plugins.normalize[self.plugin.name], self.view, pod, raw)
        names = (self.scene.cache.nodes.node(int(row)).name for row in rows)
        return {name: int(score) for name, score in zip(names, raw, strict=True)}


def _verdict(status: Status) -> Verdict:
    return status.code.value, tuple(sorted(status.reasons))


def _verdict_of(refused: Refused) -> Verdict:
    return refused.code, tuple(sorted(refused.reasons))


def _unless_equal(point: str, found: object, expected: object) -> Iterator[str]:
    if found != expected:
        yield f"{point}: ours {found}, the reference {expected}"


def trials(one: Json) -> Iterator[Trial]:
    """Every plugin of the problem's profile that has a reference."""
    scene, world, pod = load(one, DECODER), make_world(one), PodState(one["pod"])
    ours = {built.plugin.name: built.plugin for built in scene.plugins.built}
    for reference in make_profile(one.get("profile")).plugins:
        if reference.name not in ours:  # it only scores, and its score is disabled
            continue
        yield Trial(scene, world, ours[reference.name], reference, pod)


@given(SEEDS)
def test_each_vectorised_plugin_equals_its_plain_reference(seed: int) -> None:
    draw = Random(seed)
    found = {trial.reference.name: list(trial.differences(draw)) for trial in trials(problem("dense", seed))}

    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("family", ["preemption", "dense"])
@given(seed=SEEDS)
def test_complete_answer_equals_that_of_the_plain_reference(family: str, seed: int) -> None:
    one = problem(family, seed)

    assert differences(answer(one, DECODER), reference_answer(one)) == []
