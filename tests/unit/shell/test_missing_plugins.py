"""What `/readyz?verbose` says of domains that lack the plugin which objects of the cluster need."""

from __future__ import annotations

import pytest

from multisched.shell.missing_plugins import PERIOD_S
from multisched.shell.telemetry import health_of
from tests.kit import definitions
from tests.unit.shell.program_kit import Cluster, play

QUOTAS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/elasticquotas"
GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
LACKING = "disabled: [ElasticQuota, GangScheduling]"
CONFIGURATION = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
- {name: forecast, profile: {plugins: {%s}}}
- {name: gpu, profile: {plugins: {%s}}}
lease: {enabled: false}
"""


async def define(cluster: Cluster) -> None:
    await cluster.add_node("a")
    for name in ("elasticquotas-scheduler-plugins", "podgroups-scheduler-plugins"):
        await cluster.send("POST", definitions.PATH, definitions.definition(name))


@pytest.mark.parametrize(("of_gpu", "lacking"), [("", "forecast"), (LACKING, "forecast, gpu")], ids=["some", "all"])
def test_readyz_names_domains_that_ignore_quotas_and_gangs(of_gpu: str, lacking: str) -> None:
    """Also where no domain has the plugin, so that its kinds are not watched."""

    async def scene(cluster: Cluster) -> None:
        assert "no ElasticQuota" not in health_of(cluster.program)
        await cluster.send("POST", QUOTAS, {"metadata": {"name": "team"}, "spec": {"max": {"cpu": "1"}}})
        await cluster.send("POST", GROUPS, {"metadata": {"name": "ring"}, "spec": {"minMember": 2}})
        await cluster.settle(PERIOD_S + 1)
        assert health_of(cluster.program).split("; ") == [
            (
                f"{lacking}: no ElasticQuota in the profile: the ElasticQuota.scheduling.x-k8s.io objects of the cluster"
                " do not limit its pods"
            ),
            (
                f"{lacking}: no GangScheduling in the profile: the PodGroup.scheduling.x-k8s.io objects of the cluster"
                " are ignored: members of a gang start one by one"
            ),
        ]

    play(scene, prepare=define, configuration=CONFIGURATION % (LACKING, of_gpu))
