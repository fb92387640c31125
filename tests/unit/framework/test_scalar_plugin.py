"""ScalarPlugin: plugins written for one node at a time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

from multisched.framework.caching import SignPlugin
from multisched.framework.dependency import Dependency
from multisched.framework.points import FilterPlugin, PreFilterPlugin, ScorePlugin
from multisched.framework.registry import extension_points
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.scalar import ScalarPlugin
from multisched.framework.status import Code, Status
from multisched.model.objects import Node, Pod
from multisched.testing.builders import node_document, pod_document
from tests.unit.plugins.scenes import Scene

COLOURS = ("blue", "red", "grey")


def coloured() -> Scene:
    return Scene([node_document(c, labels={"colour": c}) for c in COLOURS], [], pod_document("p"))


class Answering:
    """A plugin whose filter answers by colour, and whose score is the length of the colour's name."""

    name = "Answering"

    def __init__(self, answers: dict[str, Any]) -> None:
        self._answers = answers

    def filter(self, pod: Pod, node: Node) -> Any:
        return self._answers[node.labels["colour"]]

    def score(self, pod: Pod, node: Node) -> int:
        return len(node.labels["colour"])

    def sign(self, pod: Pod) -> Hashable:
        return ()


def test_scalar_filters_may_return_booleans_texts_or_statuses() -> None:
    assert coloured().statuses(ScalarPlugin(Answering({"blue": True, "red": False, "grey": "too dull"}))) == {
        "blue": None,
        "red": (Code.UNSCHEDULABLE, ("node(s) didn't pass Answering",)),
        "grey": (Code.UNSCHEDULABLE, ("too dull",)),
    }
    statuses = {"blue": Status(), "red": Status.unresolvable("never red"), "grey": ""}
    assert coloured().statuses(ScalarPlugin(Answering(statuses))) == {
        "blue": None,
        "red": (Code.UNSCHEDULABLE_AND_UNRESOLVABLE, ("never red",)),
        "grey": None,
    }


def test_scalar_scores_are_called_per_node() -> None:
    assert coloured().scores(ScalarPlugin(Answering({}))) == {"blue": 4, "red": 3, "grey": 4}


class OnlyScores:
    name = "OnlyScores"
    depends_on = Dependency.ATTEMPT

    def score(self, pod: Pod, node: Node) -> Any:
        return "high"


def test_only_existing_methods_are_extension_points() -> None:
    both, scoring = ScalarPlugin(Answering({})), ScalarPlugin(OnlyScores())
    assert extension_points(both) == ["Filter", "Score"]
    assert extension_points(scoring) == ["Score"]
    assert isinstance(both, FilterPlugin)
    assert isinstance(both, ScorePlugin)
    assert isinstance(both, SignPlugin)
    assert not isinstance(both, PreFilterPlugin)
    assert not isinstance(scoring, SignPlugin)
    assert (both.depends_on, scoring.depends_on) == (Dependency.NODE, Dependency.ATTEMPT)


class Failures:
    """A PluginObserver that counts."""

    def __init__(self) -> None:
        self.count = 0

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None:
        pass

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        self.count += 1


@pytest.mark.parametrize("nonsense", [None, 7, Status.error("broken")])
def test_invalid_result_fails_the_attempt(nonsense: Any) -> None:
    scene, failures = coloured(), Failures()
    plugin: Any = ScalarPlugin(Answering(dict.fromkeys(COLOURS, nonsense)))
    with pytest.raises(PluginFailure) as failure:
        Runner(failures, lambda: 0.0).filter(plugin, scene.view(), scene.pod, scene.rows(scene.names))
    assert failure.value.status.code is Code.ERROR
    assert failures.count == 1


def test_non_numeric_score_fails_the_attempt() -> None:
    scene, scoring = coloured(), ScalarPlugin(OnlyScores())
    assert isinstance(scoring, ScorePlugin)
    with pytest.raises(PluginFailure, match="score returned str, not int"):
        Runner(Failures(), lambda: 0.0).score(scoring, scene.view(), scene.pod, scene.rows(scene.names))


def test_plugin_without_a_name_is_refused() -> None:
    with pytest.raises(TypeError, match="has no name"):
        ScalarPlugin(object())
