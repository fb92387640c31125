"""Profiles that differ from the default in little."""

from __future__ import annotations

import pytest

from multisched.framework.default_profile import DEFAULT_PROFILE, default_with
from multisched.framework.registry import PluginUse

NAMES = [use.name for use in DEFAULT_PROFILE.plugins]


def test_profile_keeps_the_default_order() -> None:
    packing = PluginUse("NodeResourcesFit", args={"scoringStrategy": {"type": "MostAllocated"}})
    found = default_with(packing, before={"DefaultBinder": PluginUse("Own", weight=10)}, without=["ImageLocality"])
    names = [use.name for use in found.plugins]
    at = names.index("Own")
    assert names[at + 1] == "DefaultBinder"
    assert names[:at] + names[at + 1 :] == [name for name in NAMES if name != "ImageLocality"]
    assert packing in found.plugins


def test_one_plugin_can_replace_another() -> None:
    found = default_with(before={"QOSSort": PluginUse("OwnSort")}, without=["QOSSort"])
    assert [use.name for use in found.plugins[:2]] == [NAMES[0], "OwnSort"]


def test_change_without_an_effect_is_an_error() -> None:
    with pytest.raises(ValueError, match="'ImageLocal', 'NodeName2'"):
        default_with(PluginUse("NodeName2"), without=["ImageLocal"])
