"""Traits: what is not a trait, not of its type or of no use is an error that names the plugin, the field and the fix."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows
from multisched.framework.normalize import ByLargest
from multisched.framework.points import CycleView
from multisched.framework.reasons import ReasonTable
from multisched.framework.registry import PluginSetupError, PluginUse, Registry
from multisched.framework.scalar import ScalarPlugin
from multisched.framework.traits import NO_TRAITS, Traits, traits_of
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.plugins import IN_TREE
from multisched.testing.builders import make_context

HERE = __name__


class Refuses:
    name = "Refuses"
    depends_on = Dependency.NODE
    reasons = ReasonTable("Refuses")

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        return np.ones(len(rows), np.uint8)


class MayFail(Refuses):
    traits = Traits(may_fail=True)


class OldSwitch(Refuses):
    may_fail = True


class NoStruct(Refuses):
    traits: ClassVar[Any] = {"may_fail": True}


class OfAnotherPoint(Refuses):
    traits = Traits(keeps_deadline=True)


class Unsigned(Refuses):
    traits = Traits(signs_spec_only=True)


class NormalizesTwice(Refuses):
    traits = Traits(normalizer=ByLargest())

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Any:
        return np.zeros(len(rows), np.int64)

    def normalize_score(self, cycle: CycleView, pod: Pod, raw: Any) -> Any:
        return raw


def built(name: str) -> object:
    registry = Registry()
    registry.add_all(IN_TREE, "in-tree")
    return registry.build(PluginUse(f"{HERE}:{name}"), make_context(domain="d"))


def test_plugin_has_exactly_its_declared_traits() -> None:
    assert traits_of(built("MayFail")).may_fail
    assert traits_of(built("Refuses")) == NO_TRAITS


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("OldSwitch", r"may_fail is a trait, not an attribute; write traits = Traits\(may_fail=\.\.\.\)"),
        ("NoStruct", r"traits is dict; write traits = Traits\(\.\.\.\)"),
        ("OfAnotherPoint", "keeps_deadline applies to bind, which the plugin does not have; remove it"),
        ("Unsigned", "signs_spec_only applies to sign, which the plugin does not have; remove it"),
        ("NormalizesTwice", "normalizer replaces normalize_score; remove one of them"),
    ],
)
def test_wrong_traits_are_reported_with_plugin_and_fix(name: str, words: str) -> None:
    with pytest.raises(PluginSetupError, match=f"^plugin {HERE}:{name}: .*{words}"):
        built(name)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"may_fial": True}, "may_fial"),
        ({"may_fail": "yes"}, "traits: may_fail is 'yes'; write True or False"),
        ({"normalizer": 7}, "traits: normalizer is 7; write a ByLargest, or None"),
        ({"pre_bind_timeout_s": 0}, "traits: pre_bind_timeout_s is 0; write seconds above 0"),
        ({"pre_bind_timeout_s": "1m"}, "traits: pre_bind_timeout_s is '1m'; write seconds, or None"),
        ({"reads_objects": [ObjectKind.NAMESPACE]}, "traits: reads_objects is .*; write a tuple of ObjectKind"),
        ({"reads_objects": ("Namespace",)}, "traits: reads_objects is .*; write a tuple of ObjectKind"),
    ],
)
def test_trait_typos_and_wrong_types_are_errors_at_definition(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Traits(**fields)


def test_in_tree_plugins_have_correct_traits() -> None:
    registry = Registry()
    registry.add_all(IN_TREE, "in-tree")
    traits = {name: traits_of(registry.build(PluginUse(name), make_context(domain="d"))) for name in IN_TREE}
    assert traits["NodePorts"] == Traits(signs_spec_only=True, wants_room_only=True)
    assert traits["VolumeBinding"].may_fail


def test_scalar_plugin_passes_its_traits_on() -> None:
    class OnlyBlue:
        name = "OnlyBlue"
        traits = Traits(reads_objects=(ObjectKind.SERVICE,))

        def filter(self, pod: Pod, node: Node) -> bool:
            return node.labels.get("colour") == "blue"

    assert traits_of(ScalarPlugin(OnlyBlue())).reads_objects == (ObjectKind.SERVICE,)
