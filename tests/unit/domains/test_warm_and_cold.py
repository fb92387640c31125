"""The domains' plugins keep their word on what they depend on: a warm class cache answers as a cold one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from domains.gpu.demand import GPU_INDICES, GPU_MILLI, HONOURED
from multisched.config_plugins import plugin_registry
from multisched.cycle.class_cache import ClassCache
from multisched.framework.registry import build_profile
from multisched.framework.runner import Runner
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from tests.unit.domains.builders import GPU, make_context, make_node, make_pod
from tests.unit.domains.test_profiles import DOMAINS, profile_module

NODES, PODS = 30, 300


class FailuresAreFatal:
    """A plugin observer for tests: whatever a plugin raises ends the test."""

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None:
        """Times are of no interest here."""

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        raise AssertionError(f"{plugin} failed at {point}: {error}")


class Bench:
    """Thirty nodes of one domain, a third of which honour device indices."""

    def __init__(self, domain: str) -> None:
        self.cache = ClusterCache()
        self.plugins = build_profile(
            profile_module(domain).PROFILE, plugin_registry(), make_context(self.cache, domain=domain)
        )
        self.rows = DomainRows(domain, lambda node: True)
        self.cache.add_domain(self.rows)
        self.runner = Runner(FailuresAreFatal(), lambda: 0.0)
        for number in range(NODES):
            labels = {GPU_INDICES: HONOURED} if number % 3 == 0 else {}
            self.cache.set_node(make_node(f"n{number}", labels=labels, gpu=4, cpu=16_000, memory=2**36, pods=110))
        self.warm = self.cold()

    def cold(self) -> ClassCache:
        return ClassCache(self.plugins, self.runner, self.cache.nodes, self.rows)


def random_pod(name: str, rng: random.Random) -> Pod:
    kind = rng.choice(["whole", "fraction", "fraction", "plain"])
    requests = {"cpu": 100, "memory": 2**28} | ({GPU: rng.randint(1, 3)} if kind == "whole" else {})
    annotations = {GPU_MILLI: str(rng.choice([100, 300, 500]))} if kind == "fraction" else {}
    return make_pod(name, requests=requests, labels={"app": rng.choice("abc")}, annotations=annotations)


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_warm_cache_answers_as_a_cold_one_and_no_ledger_refuses_what_passed(domain: str) -> None:
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
