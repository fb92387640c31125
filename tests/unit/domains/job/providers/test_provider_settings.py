"""The args of ServerlessUnits: what is read, and that each mistake is named with its field."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from domains.job.providers.messages import Failure
from domains.job.providers.serverless_units import ServerlessUnits
from domains.job.providers.settings import Quota, provider_settings
from domains.job.providers.sizes import Size
from multisched.config import loading
from multisched.config.domains import judged_domains
from multisched.framework.context import PluginContext
from multisched.framework.ledger import LedgerSettingsError
from multisched.framework.plugin_args import PluginArgsError
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import NoWaitingPods

GIB = 2**30


def unit(**fields: Any) -> dict[str, Any]:
    return {"units": [{"name": "eci", "nodeSelector": {"type": "virtual-kubelet"}, **fields}]}


def test_all_fields_are_read() -> None:
    found = provider_settings(
        unit(
            rate={"burst": 20, "perSecond": 5},
            quota={"pods": 7, "cpu": "2", "memory": "4Gi"},
            sizes=[{"cpu": "1", "memory": "2Gi"}, {"cpu": 4, "memory": "8Gi"}],
            price={"cpu": 0.05},
            waitFirst={"maxWait": "15m"},
            sandboxTimeout="90s",
        )
        | {"messages": [{"text": "image policy", "failure": "permanent"}]}
    )
    (eci,) = found.units
    assert (eci.burst, eci.per_second, eci.sandbox_timeout_s) == (20, 5.0, 90.0)
    assert (eci.max_wait_s, provider_settings(unit()).units[0].max_wait_s) == (900.0, None), "off by default"
    assert eci.quota == Quota(7, 2000, 4 * GIB)
    assert eci.sizes.rounded(1500, GIB) == Size(4000, 8 * GIB)
    assert eci.sizes.rounded(5000, GIB) is None
    assert not eci.is_elastic
    assert provider_settings(unit(capacity="elastic")).units[0].is_elastic
    assert found.messages == (("image policy", Failure.PERMANENT),)
    assert provider_settings(unit(roundTo={"cpu": "250m", "memory": "1Gi"})).units[0].sizes.rounded(300, 1) == Size(
        500, GIB
    )


@pytest.mark.parametrize(
    ("args", "field", "words"),
    [
        ({"units": [{"nodeSelector": {"a": "b"}}]}, "args.units[0].name", "is missing"),
        ({"units": [{"name": "a"}]}, "args.units[0].nodeSelector", "is missing"),
        (unit(rate={"perSecond": 0}), "args.units[0].rate.perSecond", "above 0"),
        (unit(rate={"burst": "many"}), "args.units[0].rate.burst", "whole number"),
        (unit(quota={"cpu": "lots"}), "args.units[0].quota.cpu", "write a quantity such as 500m"),
        (unit(quota={"memory": True}), "args.units[0].quota.memory", "write a quantity such as 512Mi"),
        (unit(capacity="unlimited"), "args.units[0].capacity", "write one of allocatable, elastic"),
        (unit(sizes=[]), "args.units[0].sizes", "is empty"),
        (unit(sizes=[{"cpu": "1"}]), "args.units[0].sizes[0].memory", "is missing"),
        (unit(sizes=[{"cpu": "1", "memory": "1Gi"}], roundTo={}), "args.units[0].roundTo", "remove one"),
        (unit(price={"cpu": -1}), "args.units[0].price.cpu", "within"),
        (unit(waitFirst={}), "args.units[0].waitFirst", "needs a price"),
        (unit(price={"cpu": 1}, waitFirst={"maxWait": "soon"}), "args.units[0].waitFirst.maxWait", "duration"),
        (unit(sandboxTimeout="0s"), "args.units[0].sandboxTimeout", "too short"),
        (unit(nodeselector={}), "args.units[0].nodeselector", "did you mean nodeSelector"),
        ({"messages": [{"text": " ", "failure": "permanent"}]}, "args.messages[0].text", "is empty"),
        ({"messages": [{"text": "x", "failure": "forever"}]}, "args.messages[0].failure", "permanent"),
    ],
)
def test_each_mistake_names_its_field(args: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(PluginArgsError) as caught:
        provider_settings(args)
    found = {problem.path: problem.reason for problem in caught.value.problems}
    assert words in found[field], found


def test_two_units_of_one_name_are_refused() -> None:
    with pytest.raises(PluginArgsError, match="is used twice"):
        provider_settings({"units": [*unit()["units"], *unit()["units"]]})


@pytest.mark.parametrize(
    "sizes",
    [{"sizes": [{"cpu": 2, "memory": "4Gi"}, {"cpu": 1, "memory": "2Gi"}]}, {"roundTo": {"cpu": 1, "memory": 1}}, {}],
)
def test_settings_that_are_read_again_are_equal(sizes: dict[str, Any]) -> None:
    """A reload that changes something else keeps the plugin's ledger."""
    args = unit(**sizes, price={"cpu": 1})
    assert provider_settings(args) == provider_settings(args)
    assert provider_settings(args) != provider_settings(unit(**sizes, price={"cpu": 1}, capacity="elastic"))


def test_other_units_than_the_registered_ones_need_a_restart() -> None:
    cache = ClusterCache()
    context = PluginContext("job", cache.nodes, NoWaitingPods(), cache.ledgers, cache.objects)
    ServerlessUnits(context, unit())
    ServerlessUnits(context, unit())
    with pytest.raises(LedgerSettingsError, match="change only at the start"):
        ServerlessUnits(context, unit(capacity="elastic"))


def test_judge_gets_the_units_of_the_configuration() -> None:
    head = {"apiVersion": "multisched.io/v1", "kind": "MultischedConfiguration"}
    units = [*unit()["units"], {"name": "more", "nodeSelector": {"a": "b", "c": "d"}, "capacity": "elastic"}]
    enabled = [{"name": "ServerlessUnits", "args": {"units": units}}]
    document = {**head, "domains": [{"name": "job", "profile": {"plugins": {"enabled": enabled}}}]}
    (domain,) = judged_domains(loading.parse(yaml.safe_dump(document), "f"))
    assert [(one.labels, one.is_elastic) for one in domain.units] == [
        ((("type", "virtual-kubelet"),), False),
        ((("a", "b"), ("c", "d")), True),
    ]
