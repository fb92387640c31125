"""The domains' plugins keep their word on what they depend on: a warm class cache answers as a cold one."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from domains.forecast.forecast import Forecast
from domains.gpu.dialects.own import GPU_MILLI
from domains.gpu.dialects.whole import GPU_INDICES, HONOURED
from multisched.config.plugins import plugin_registry
from multisched.cycle.classes.cache import ClassCache
from multisched.framework.registry import build_profile
from multisched.framework.runner import Runner
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.testing.builders import GPU, make_context, make_node, make_pod
from tests.unit.domains.forecast.profiles import make_profiles
from tests.unit.domains.test_domain_profiles import DOMAINS, profile_module

NODES, PODS = 30, 300


class FailuresAreFatal:
    """A plugin observer for tests: whatever a plugin raises ends the test."""

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None:
        """Times are of no interest here."""

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        raise AssertionError(f"{plugin} failed at {point}: {error}")


class Bench:
    """Thirty nodes of one domain, a third of which honour device indices."""

    def __init__(self, domain: str, args: Mapping[str, Any] | None = None) -> None:
        """`args`: of PeakForecast."""
        self.cache = ClusterCache()
        profile = profile_module(domain).PROFILE
        if args is not None:
            uses = (replace(use, args=args) if use.name == "PeakForecast" else use for use in profile.plugins)
            profile = replace(profile, plugins=tuple(uses))
        self.plugins = build_profile(profile, plugin_registry(), make_context(self.cache, domain=domain))
        self.rows = DomainRows(domain, lambda node: True)
        self.cache.add_domain(self.rows)
        self.runner = Runner(FailuresAreFatal(), lambda: 0.0)
        for number in range(NODES):
            labels = {GPU_INDICES: HONOURED} if number % 3 == 0 else {}
            self.cache.set_node(
                make_node(f"n{number}", labels=labels, extra={GPU: 4}, cpu_milli=16_000, memory_bytes=2**36, pods=110)
            )
        self.warm = self.cold()

    def forecasts(self) -> list[Forecast]:
        return [built.plugin for built in self.plugins.built if isinstance(built.plugin, Forecast)]

    def cold(self) -> ClassCache:
        return ClassCache(self.plugins, self.runner, self.cache.nodes, self.rows)


def random_pod(name: str, rng: random.Random) -> Pod:
    kind = rng.choice(["whole", "fraction", "fraction", "plain"])
    devices = {GPU: rng.randint(1, 3)} if kind == "whole" else {}
    annotations = {GPU_MILLI: str(rng.choice([100, 300, 500]))} if kind == "fraction" else {}
    return make_pod(
        name,
        cpu_milli=100,
        memory_bytes=2**28,
        extra=devices,
        labels={"app": rng.choice("abc")},
        annotations=annotations,
    )


@pytest.mark.parametrize("domain", DOMAINS)
def test_warm_and_cold_caches_agree_and_feasible_rows_fit_in_ledgers(domain: str) -> None:
    bench, rng = Bench(domain), random.Random(7)
    placed: list[str] = []
    for number in range(PODS):
        pod = random_pod(f"p{number}", rng)
        warm, cold = bench.warm.find(pod, 1), bench.cold().find(pod, 1)
        bench.warm.score(warm)
        bench.cold().score(cold)
        assert warm.feasible.tolist() == cold.feasible.tolist()
        assert warm.total.tolist() == cold.total.tolist()
        passing = [int(row) for row in warm.rows[warm.feasible]]
        best = int(warm.rows[int(np.argmax(warm.total))])
        fitting = [row for row in passing if not bench.cache.ledgers.fits(pod, row)]
        if domain == "gpu":
            assert fitting == passing
        if best in fitting:
            bench.cache.assume(pod, best)
            placed.append(pod.uid)
        if placed and rng.random() < 0.45:
            bench.cache.remove(placed.pop(rng.randrange(len(placed))))

    bench.cache.validate()
    assert bench.warm.hits > PODS * 0.9
    assert bench.warm.unsigned == {}
    assert placed


@pytest.mark.parametrize("mode", ["score", "filter", "both"])
def test_changed_profiles_invalidate_cached_results(mode: str) -> None:
    args = {"mode": mode, "thresholdPercent": 60, "dimensions": ["cpu"]}
    bench, rng, numbers = Bench("forecast", args), random.Random(7), np.random.default_rng(7)
    (plugin,) = bench.forecasts()
    placed: list[str] = []
    refused = 0
    for number in range(PODS):
        if number % 70 == 20:
            curves = {name: {"cpu": 3 * numbers.random(168)} for name in "ab"}
            plugin.adopt(make_profiles(("cpu",), version=number, **curves))
        pod = random_pod(f"p{number}", rng)
        warm, cold = bench.warm.find(pod, 1), bench.cold().find(pod, 1)
        bench.warm.score(warm)
        bench.cold().score(cold)
        assert warm.feasible.tolist() == cold.feasible.tolist()
        assert [int(total) for total in warm.total] == [int(total) for total in cold.total]
        refused += any(column.plugin.name == plugin.name and column.codes.any() for column in warm.filters)
        if warm.feasible.any():
            bench.cache.assume(pod, int(warm.rows[int(np.argmax(warm.total))]))
            placed.append(pod.uid)
        if placed and rng.random() < 0.3:
            bench.cache.remove(placed.pop(rng.randrange(len(placed))))

    assert placed
    assert bool(refused) is (mode != "score")
