"""The args of GpuTide: what they mean, and that every mistake names the field and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from domains.gpu.tide.settings import HookSettings, tide_settings
from domains.gpu.tide.windows import DemandWindow, DemandWindows
from multisched.framework.plugin_args import PluginArgsError

SERVING: dict[str, Any] = {"selector": {"matchLabels": {"tier": "serving"}}}


def test_all_fields_are_read() -> None:
    found = tide_settings(
        {
            "inference": {**SERVING, "minPriority": 1000, "namespaces": ["web"], "floor": 40, "ceiling": 700},
            "evictable": {"selector": {"matchExpressions": [{"key": "keep", "operator": "DoesNotExist"}]}},
            "notice": "2m",
            "grace": "20s",
            "minRunTime": "1h",
            "hook": {"url": "https://checkpoint.example/tide", "timeout": "5s"},
            "growth": {"quiet": "10m", "ahead": "2h"},
            "headroom": {"min": 4, "max": 60},
            "evictionCap": 400,
            "zone": "Europe/Berlin",
            "windows": [{"days": ["sun"], "from": "22:00", "to": "02:00", "cards": 60}],
            "frozen": True,
        }
    )
    assert found.inference.selects("web", {"tier": "serving"}, 1000)
    assert not found.inference.selects("web", {"tier": "serving"}, 999)
    assert not found.inference.selects("train", {"tier": "serving"}, 1000)
    assert not found.inference.selects("web", {}, 1000)
    assert found.evictable.selects("any", {}, -5)
    assert not found.evictable.selects("any", {"keep": ""}, 0)
    assert (found.floor_cards, found.ceiling_cards, found.eviction_cap_cards) == (40, 700, 400)
    assert (found.notice_s, found.grace_s, found.min_run_s, found.horizon_s) == (120.0, 20.0, 3_600.0, 140.0)
    assert (found.quiet_s, found.ahead_s) == (600.0, 7_200.0)
    assert (found.min_headroom_cards, found.max_headroom_cards) == (4, 60)
    assert found.hook == HookSettings("https://checkpoint.example/tide", 5.0)
    assert found.windows == DemandWindows((DemandWindow((6,), 22 * 60, 26 * 60, 60),), "Europe/Berlin")
    assert found.is_frozen


def test_defaults_need_only_the_inference_pods() -> None:
    found = tide_settings({"inference": SERVING})
    assert (found.notice_s, found.min_run_s, found.hook, found.is_frozen) == (90.0, 1_800.0, None, False)
    assert found.evictable.is_open


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({}, "args.inference: selects every pod"),
        ({"inference": {"floor": 9}}, "args.inference: selects every pod"),
        ({"inference": {**SERVING, "floor": 9, "ceiling": 8}}, "args.inference.ceiling: 8 is below the floor of 9 cards; raise it"),
        ({"inference": {"selector": {"matchLabels": {"a b": "c"}}}}, "args.inference.selector: a b In is not a valid"),
        ({"inference": {"selector": {}}}, "args.inference.selector: is empty; write for instance"),
        ({"inference": {"selector": {"labels": {}}}}, "args.inference.selector.labels: unknown field"),
        ({"inference": {"selector": {"matchLabels": {"a": 1}}}}, "args.inference.selector: Expected `str`"),
        ({"inference": {"namespaces": ["Web"]}}, "args.inference.namespaces: 'Web' cannot name a namespace"),
        ({"notice": "90"}, "args.notice: '90' is not a duration"),
        ({"notice": "0s"}, "args.notice: 0s is too short; write at least 1s"),
        ({"notice": "2h"}, "args.notice: 2h is too long; write at most 3600s"),
        ({"minRunTime": "1m"}, "args.minRunTime: is shorter than the notice, 90s, so"),
        ({"notice": "45m", "growth": {"quiet": "1h"}}, "args.minRunTime: is shorter than the notice, 45m, so"),
        ({"growth": {"quiet": "1m"}}, "args.growth.quiet: is shorter than notice + grace (120s), so"),
        ({"growth": {"ahead": "10m"}}, "args.growth.ahead: is shorter than minRunTime (1800s), so"),
        ({"headroom": {"max": 0, "min": 0}}, "args.headroom.max: 0 keeps no card free"),
        ({"headroom": {"max": 3, "min": 4}}, "args.headroom.max: 3 is below headroom.min, 4; raise it"),
        ({"headroom": {"min": 4}, "evictionCap": 2}, "args.evictionCap: 2 is below headroom.min, 4"),
        ({"hook": {"url": "http://checkpoint.example"}}, "args.hook.url: is 'http://checkpoint.example'; write https://"),
        ({"hook": {}}, "args.hook.url: is ''; write https://"),
        ({"hook": {"url": "https://me:word@host/"}}, "args.hook.url: names a user or a password"),
        ({"hook": {"url": "https://host/", "timeout": "1h"}}, "args.hook.timeout: 1h is too long; write at most 300s"),
        ({"windows": []}, "args.windows: is empty; write for instance"),
        ({"windows": [{"from": "7", "to": "19:00", "cards": 1}]}, "args.windows[0].from: '7' is not a time"),
        ({"windows": [{"from": "07:00", "to": "07:00", "cards": 1}]}, "args.windows[0].to: the same as from"),
        ({"windows": [{"from": "07:00", "to": "09:00"}]}, "args.windows[0].cards: missing"),
        (
            {"windows": [{"from": "20:00", "to": "02:00", "cards": 1}, {"days": ["tue"], "from": "01:00", "to": "03:00", "cards": 2}]},
            "args.windows[1]: overlaps windows[0] from tue 01:00 on; end one where",
        ),
        (
            {"inference": {**SERVING, "ceiling": 50}, "windows": [{"from": "07:00", "to": "09:00", "cards": 60}]},
            "args.windows[0].cards: 60 is above the ceiling of 50 cards",
        ),
        ({"zone": "Mars/North"}, "args.zone: 'Mars/North' is not a known time zone"),
        ({"frozen": "yes"}, "args.frozen: is a text; write true or false"),
        ({"notise": "1m"}, "args.notise: unknown field"),
    ],
)  # fmt: skip
def test_mistakes_name_the_field_and_the_fix(args: dict[str, Any], problem: str) -> None:
    if args and "inference" not in args:
        args = {"inference": SERVING, **args}
    with pytest.raises(PluginArgsError) as raised:
        tide_settings(args)
    (line,) = str(raised.value).splitlines()
    assert line.startswith(problem)
