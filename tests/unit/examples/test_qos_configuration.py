"""The qos example: a fourth scheduler that the configuration alone makes."""

from __future__ import annotations

from pathlib import Path

from multisched.config import loading
from multisched.config.nodes import NodeRouter
from multisched.config.plugins import plugin_registry, resolve_profile
from multisched.framework.registry import build_profile
from multisched.testing.builders import GPU, make_context, make_node

FILE = Path(__file__).parents[2] / "examples" / "qos.yaml"


def test_example_configures_the_named_queue_sort_plugin() -> None:
    configuration = loading.load(FILE)
    qos = configuration.domain("qos")
    plugins = build_profile(resolve_profile(qos, plugin_registry()), plugin_registry(), make_context(domain="qos"))

    assert [d.name for d in configuration.domains] == ["forecast", "gpu", "job", "qos"]
    assert qos.scheduler_names == ("qos-scheduler",)
    assert plugins.queue_sort.name == "QOSSort"


def test_example_domain_uses_lent_nodes_of_the_forecast_domain() -> None:
    router = NodeRouter(loading.load(FILE))
    work, gpu = make_node("work", cpu_milli=1000), make_node("gpu", extra={GPU: 8})

    assert router.home(work) == "forecast"
    assert router.usable_by("qos")(work)
    assert not router.usable_by("qos")(gpu)
