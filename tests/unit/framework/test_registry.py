"""Plugins by name and by import path, and the sets that profiles make of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from multisched.framework.context import PluginContext
from multisched.framework.dependency import Dependency, Isolation, dependency_of
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, Plugin
from multisched.framework.reasons import ReasonTable
from multisched.framework.registry import (
    EXTENSION_POINTS,
    PluginSetupError,
    PluginUse,
    Profile,
    Registry,
    build_profile,
    extension_points,
)
from multisched.framework.scalar import ScalarPlugin
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Node, Pod
from multisched.plugins import IN_TREE
from multisched.testing.builders import make_context

HERE = __name__


class Plain:
    name = "Plain"

    def pre_enqueue(self, pod: Pod) -> Status:
        return SUCCESS


class WithArgs(Plain):
    name = "WithArgs"

    def __init__(self, args: Mapping[str, Any]) -> None:
        self.args = args


class WithContext(Plain):
    name = "WithContext"

    def __init__(self, context: PluginContext) -> None:
        self.context = context


class WithBoth(Plain):
    name = "WithBoth"

    def __init__(self, context: PluginContext, args: Mapping[str, Any]) -> None:
        self.args, self.context = args, context


class Fails(Plain):
    def __init__(self) -> None:
        raise ValueError("no licence")


class LacksArgs(Plain):
    def __init__(self, args: Mapping[str, Any]) -> None:
        self.licence = args["licence"]


class Nothing:
    name = "Nothing"


class Nameless:
    def pre_enqueue(self, pod: Pod) -> Status:
        return SUCCESS


class NoDependency:
    name = "NoDependency"
    reasons = ReasonTable("NoDependency")

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        return np.zeros(len(rows), np.uint8)


class SlipOfThePen(Plain):
    name = "SlipOfThePen"
    depend_on = Dependency.NODE


class NamesNothing(Plain):
    name = "NamesNothing"

    def __init__(self) -> None:
        self.depends_on = "node"


class KeepsOne(Plain):
    name = "KeepsOne"
    depends_on = Dependency.ROW
    _was = Dependency.NODE


class ScalarSlip:
    name = "ScalarSlip"
    dependsOn = Dependency.ROW

    def filter(self, pod: Pod, node: Node) -> bool:
        return True


def make_scalar_slip() -> Plugin:
    return ScalarPlugin(ScalarSlip())


class IgnoredResourcesAreText(Plain):
    resources_ignored_by_fit = "example.com/fpga"


class NoReasons:
    name = "NoReasons"
    depends_on = Dependency.NODE

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        return np.zeros(len(rows), np.uint8)

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Any:
        return np.zeros(len(rows), np.int64)


not_callable = 7


def make_plain() -> Plugin:
    return Plain()


def in_tree() -> Registry:
    registry = Registry()
    registry.add_all(IN_TREE, "in-tree")
    return registry


def built(path: str, **args: Any) -> Plugin:
    return in_tree().build(PluginUse(path, args=args), make_context(domain="d"))


def test_plugin_is_found_by_name_or_path() -> None:
    assert built("NodeName").name == "NodeName"
    assert isinstance(built(f"{HERE}:Plain"), Plain)
    assert isinstance(built(f"{HERE}:make_plain"), Plain)


def test_factory_gets_the_parameters_it_declares() -> None:
    both = built(f"{HERE}:WithBoth", size=3)
    assert isinstance(both, WithBoth)
    assert (both.args, both.context.domain) == ({"size": 3}, "d")
    alone, context = built(f"{HERE}:WithArgs"), built(f"{HERE}:WithContext")
    assert isinstance(alone, WithArgs)
    assert isinstance(context, WithContext)
    assert alone.args == {}
    assert context.context.domain == "d"


@pytest.mark.parametrize(
    ("path", "args", "words"),
    [
        ("NodeNam", {}, r"plugin NodeNam: not known; did you mean NodeName\?"),
        ("Quite", {}, "write package.module:Class for a plugin of your own"),
        ("no.such.module:Plugin", {}, "cannot import no.such.module"),
        (f"{HERE}:Missing", {}, "has no class or function Missing"),
        (f"{HERE}:not_callable", {}, "has no class or function not_callable"),
        (f"{HERE}:Plain", {"size": 3}, "takes no args; remove them"),
        (f"{HERE}:Fails", {}, "Fails: no licence"),
        (f"{HERE}:LacksArgs", {}, "LacksArgs: KeyError: 'licence'; name it in args, if it is a setting"),
        (f"{HERE}:Nothing", {}, "implements no extension point"),
        (f"{HERE}:Nameless", {}, "has no name"),
        (f"{HERE}:NoDependency", {}, "has filter but no depends_on"),
        (f"{HERE}:NoReasons", {}, "has filter but no reasons"),
        (f"{HERE}:IgnoredResourcesAreText", {}, "resources_ignored_by_fit is str; write a frozenset of resource names"),
        (
            f"{HERE}:SlipOfThePen",
            {},
            "depend_on is Dependency.NODE, but the framework reads only depends_on; rename it",
        ),
        (f"{HERE}:NamesNothing", {}, "depends_on is 'node'; write a Dependency"),
        (
            f"{HERE}:make_scalar_slip",
            {},
            "dependsOn is Dependency.ROW, but the framework reads only depends_on; rename it",
        ),
        ("NodeResourcesFit", {"scoringStrateg": {}}, "scoringStrateg"),
    ],
)
def test_unbuildable_plugin_is_named_with_the_reason(path: str, args: dict[str, Any], words: str) -> None:
    with pytest.raises(PluginSetupError, match=words):
        built(path, **args)


def test_dependency_of_a_plugin_is_the_declared_one() -> None:
    assert [dependency_of(built(f"{HERE}:{name}")) for name in ("Plain", "KeepsOne")] == [
        Dependency.ATTEMPT,
        Dependency.ROW,
    ]


def test_plugin_name_is_registered_once() -> None:
    registry = in_tree()
    with pytest.raises(PluginSetupError, match="already registered by in-tree, registered again by mine"):
        registry.add("NodeName", Plain, "mine")
    assert registry.names()["NodeName"] == "in-tree"


def profile(*uses: PluginUse) -> Profile:
    return Profile(uses)


SORT, BINDER = PluginUse("QOSSort"), PluginUse("DefaultBinder")


def test_plugins_run_at_their_points_in_profile_order() -> None:
    uses = (PluginUse("NodePorts"), SORT, PluginUse("NodeName"), PluginUse("TaintToleration", weight=3), BINDER)
    plugins = build_profile(profile(*uses), in_tree(), make_context())

    assert [p.name for p in plugins.filter] == ["NodePorts", "NodeName", "TaintToleration"]
    assert [p.name for p in plugins.pre_filter] == ["NodePorts"]
    assert plugins.queue_sort.name == "QOSSort"
    assert plugins.weight(plugins.score[0]) == 3


def test_zero_weight_filters_without_scoring() -> None:
    plugins = build_profile(profile(SORT, PluginUse("TaintToleration", weight=0), BINDER), in_tree(), make_context())
    assert [p.name for p in plugins.filter] == ["TaintToleration"]
    assert plugins.score == ()


@pytest.mark.parametrize(
    ("uses", "words"),
    [
        ((BINDER,), "exactly one QueueSort plugin is needed, found none"),
        ((SORT, PluginUse("PrioritySort"), BINDER), "found QOSSort, PrioritySort"),
        ((SORT,), "a Bind plugin is needed"),
        ((SORT, BINDER, BINDER), "DefaultBinder is enabled twice"),
        ((SORT, BINDER, PluginUse("NodeName", isolation=Isolation.THREAD)), "this program cannot run isolated plugins"),
    ],
)
def test_unworkable_profile_is_refused(uses: tuple[PluginUse, ...], words: str) -> None:
    with pytest.raises(PluginSetupError, match=words):
        build_profile(profile(*uses), in_tree(), make_context())


def test_there_are_thirteen_extension_points_in_order() -> None:
    assert list(EXTENSION_POINTS) == [
        "PreEnqueue",
        "QueueSort",
        "PreFilter",
        "Filter",
        "PostFilter",
        "PreScore",
        "Score",
        "NormalizeScore",
        "Reserve",
        "Permit",
        "PreBind",
        "Bind",
        "PostBind",
    ]
    assert extension_points(Plain()) == ["PreEnqueue"]
    assert extension_points(Nothing()) == []


def uses_of(*names: str) -> tuple[PluginUse, ...]:
    return tuple(PluginUse(name) for name in names)


def test_point_lists_its_own_plugins_and_other_points_run_all() -> None:
    uses = uses_of("PrioritySort", "NodeName", "TaintToleration", "NodeAffinity", "DefaultBinder", f"{HERE}:Plain")
    profile = Profile(uses, {"Filter": ("TaintToleration", "NodeName"), "Score": (), "PreEnqueue": (f"{HERE}:Plain",)})

    plugins = build_profile(profile, in_tree(), make_context())

    assert [p.name for p in plugins.filter] == ["TaintToleration", "NodeName"]
    assert plugins.score == ()
    assert [p.name for p in plugins.pre_enqueue] == ["Plain"]
    assert [p.name for p in plugins.pre_score] == ["TaintToleration", "NodeAffinity"]


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("NodeName", "profile: plugin NodeName is listed for Score but does not implement it; remove it there"),
        (
            "NodePorts",
            "profile: plugin NodePorts is listed for Score but is not enabled in the profile; remove it there",
        ),
    ],
)
def test_plugin_at_an_unsupported_point_is_refused(listed: str, message: str) -> None:
    profile = Profile(uses_of("PrioritySort", "NodeName", "DefaultBinder"), {"Score": (listed,)})

    with pytest.raises(PluginSetupError) as refused:
        build_profile(profile, in_tree(), make_context())
    assert str(refused.value) == message


class Bare:
    """Made without anything."""


class ByNew:
    """Takes what it is made with before it is initialised."""

    def __new__(cls, args: object) -> ByNew:
        raise NotImplementedError


class Fields(msgspec.Struct):
    """Its metaclass makes it from its fields."""

    args: object


class MadeFrom(type):
    """A metaclass that makes a class from arguments."""

    def __call__(cls, args: object) -> object:
        raise NotImplementedError


class Called(metaclass=MadeFrom):
    """Takes what its metaclass takes."""


@pytest.mark.parametrize(("factory", "takes"), [(Bare, False), (ByNew, True), (Fields, True), (Called, True)])
def test_factories_with_arguments_are_detected(factory: Any, takes: bool) -> None:
    registry = Registry()
    registry.add("One", factory, "a test")
    assert registry.takes_args("One") == takes
