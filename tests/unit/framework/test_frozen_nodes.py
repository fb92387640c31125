"""In-tree plugins give the same answers beside the loop as in it: over frozen nodes, after a trip through bytes."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.framework.dependency import Isolation
from multisched.framework.isolation import IsolatedPlugin, IsolatedRequest, IsolatedResponse, run_isolated
from multisched.framework.points import FilterPlugin, NormalizeScorePlugin, Plugin, PreScorePlugin, ScorePlugin
from multisched.framework.registry import PluginUse
from multisched.framework.status import Code
from multisched.framework.traits import traits_of
from multisched.plugins.image_locality import ImageLocality
from multisched.plugins.node_affinity import NodeAffinity
from multisched.plugins.node_ports import NodePorts
from multisched.plugins.node_resources_fit import NodeResourcesFit
from multisched.plugins.taint_toleration import TaintToleration
from tests.unit.plugins.scenes import Scene, scenes


class ByBytes:
    """A worker as in a process, without the process."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin

    async def run(self, request: IsolatedRequest) -> IsolatedResponse:
        asked = pickle.loads(pickle.dumps(request))
        answer = pickle.loads(pickle.dumps(run_isolated(self._plugin, asked)))
        assert isinstance(answer, IsolatedResponse)
        return answer


def awaited(plugin: IsolatedPlugin, request: object) -> object:
    """What `answer` returns, without a loop: ByBytes never waits."""
    coroutine = plugin.response(request)
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waited")


def final_scores(plugin: ScorePlugin, scene: Scene, passing: list[str]) -> dict[str, int]:
    """Raw scores of the rows that pass, normalised."""
    view, rows = scene.view(), scene.rows(passing)
    skips = isinstance(plugin, PreScorePlugin) and plugin.pre_score(view, scene.pod, rows).code is Code.SKIP
    if skips or not len(rows):
        return dict.fromkeys(passing, 0)
    raw = plugin.score(view, scene.pod, rows)
    normalizer = traits_of(plugin).normalizer
    if normalizer is not None:
        raw = normalizer.apply(raw, int(raw.max()))
    elif isinstance(plugin, NormalizeScorePlugin):
        raw = plugin.normalize_score(view, scene.pod, raw)
    return {scene.table.node(int(row)).name: int(score) for row, score in zip(rows, raw, strict=True)}


CASES: list[tuple[str, Callable[[], Plugin]]] = [
    ("resources", NodeResourcesFit),
    ("labels", NodeAffinity),
    ("taints", TaintToleration),
    ("ports", NodePorts),
    ("images", ImageLocality),
]


@pytest.mark.parametrize(("about", "make"), CASES)
@given(data=st.data())
def test_frozen_nodes_give_the_same_results(about: str, make: Callable[[], Plugin], data: st.DataObject) -> None:
    scene, plugin = data.draw(scenes(about)), make()
    use = PluginUse(plugin.name, isolation=Isolation.PROCESS)
    isolated = IsolatedPlugin(plugin, use, ByBytes(make()))
    view, rows = scene.view(), scene.rows(scene.names)
    view.responses = {plugin.name: awaited(isolated, isolated.request(view, scene.pod, rows))}
    names = [scene.table.node(int(row)).name for row in rows]

    passing = names
    if isinstance(plugin, FilterPlugin):
        assert isinstance(isolated, FilterPlugin)
        found = [isolated.reasons.status(code) for code in isolated.filter(view, scene.pod, rows).tolist()]
        inline = scene.statuses(plugin)
        refused = {name for name, status in inline.items() if status is not None}
        for name, status in zip(names, found, strict=True):
            told = None if status.is_success else (status.code, status.reasons)
            # A PreFilter that narrows the search refuses rows here that Filter is not asked about inline.
            assert told == inline[name] or (told is not None and "didn't satisfy plugin" in told[1][0])
        passing = [name for name, status in zip(names, found, strict=True) if status.is_success]
        assert not refused & set(passing)
    if isinstance(plugin, ScorePlugin):
        assert isinstance(isolated, ScorePlugin)
        scores = dict(zip(names, isolated.score(view, scene.pod, rows).tolist(), strict=True))
        assert {name: scores[name] for name in passing} == final_scores(plugin, scene, passing)
    assert np.array_equal(rows, scene.rows(scene.names))
