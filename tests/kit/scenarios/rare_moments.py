"""Scenarios of moments that runs with disruptions hardly ever draw: something changes while a pod or a gang waits for its bind, while
a tree is counted, or while one of several equal pods is tried.

Runs from RARE_FROM up to LENT_FROM have all of them, in place of those of `edits`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final
from unittest.mock import patch

from multisched.model.objects import CPU
from multisched.plugins.quota import quota_ledger
from tests.kit.processes.configuration_files import LATE_MAX_S
from tests.kit.scenarios.edits import (
    FORECAST,
    GANG_COMES_S,
    NAMESPACES,
    REFUSED_S,
    EditScenario,
    Scenario,
    is_assumed,
    leaf,
)
from tests.kit.scenarios.steps import are_bound, bound_pods
from tests.kit.settings.changed_files import ChangedFile
from tests.kit.settings.setting import text_of
from tests.kit.world.gang_plans import Form
from tests.kit.world.gang_workloads import POOL
from tests.kit.world.pod_manifests import anti_affinity

TEAM, OTHER = NAMESPACES
EXCLUDED: Final = "moment"
"""Label of pods that the pods of a scenario exclude."""


async def _are_assumed(scenario: EditScenario, *names: str) -> bool:
    return await scenario.gangs.until(lambda: all(is_assumed(scenario, name) for name in names), GANG_COMES_S)


# -- binding -----------------------------------------------------------------------------------------------------------


async def _fill_node_of_a_waiting_member(scenario: EditScenario) -> bool:
    """One of two members waits for its volume. Another scheduler fills the node of the other one, so that the gang cannot start."""
    nodes = [await scenario.node(1) for _ in range(2)]
    gang = (f"{scenario.pool}-gang", 2)
    claim = await scenario.gangs.claim()
    members = [
        await scenario.pod("1", gang=gang, node=node, claim=one) for node, one in zip(nodes, ("", claim), strict=True)
    ]
    if not await _are_assumed(scenario, *members):
        return False
    await scenario.context.world.external_actors.place(nodes[0], cpu="1")
    await scenario.context.pause(1.0, 2.0)
    await scenario.gangs.provision(claim)
    return await scenario.must_stay(
        "a member is bound although the other one has no node",
        lambda: not bound_pods(scenario.context, members),
        invariant="I13",
    )


async def _add_member_to_a_waiting_gang(scenario: EditScenario) -> bool:
    """Two of three members wait for their volumes. A fourth member is added: it is not bound before the gang is."""
    await scenario.node(4)
    gang = (f"{scenario.pool}-gang", 3)
    claims = [await scenario.gangs.claim() for _ in range(2)]
    members = [await scenario.pod("1", gang=gang, claim=one) for one in ("", *claims)]
    if not await _are_assumed(scenario, *members):
        return False
    members.append(await scenario.pod("1", gang=gang))
    await scenario.must_stay(
        "a member is bound although its gang has not started",
        lambda: not bound_pods(scenario.context, members),
        invariant="I13",
    )
    for claim in claims:
        await scenario.gangs.provision(claim)
    return await scenario.must_be_bound("the volumes were provisioned", *members, within_s=GANG_COMES_S)


async def _place_excluded_pod_elsewhere(scenario: EditScenario) -> bool:
    """A pod that waits for its volume excludes other pods from its zone. Another scheduler places such a pod on another node there."""
    node, other = [await scenario.node(2) for _ in range(2)]
    labels = {EXCLUDED: scenario.pool}
    claim = await scenario.gangs.claim()
    name = await scenario.pod("1", node=node, claim=claim, affinity=anti_affinity(labels, POOL))
    if not await _are_assumed(scenario, name):
        return False
    await scenario.context.world.external_actors.place(other, labels=labels)
    await scenario.context.pause(1.0, 2.0)
    await scenario.gangs.provision(claim)
    return await scenario.must_stay(
        "a pod is bound beside one that it excludes",
        lambda: not are_bound(scenario.context, [name]),
        invariant="I8",
    )


# -- quotas ------------------------------------------------------------------------------------------------------------


async def _assume_pods_while_a_tree_is_counted(scenario: EditScenario) -> bool:
    """A tree replaces another one, and its pods are counted one by one, while binds of further pods are in flight. All count."""
    await scenario.use_tree((TEAM, 50), (OTHER, 50))
    node, slow = [await scenario.node(50) for _ in range(2)]
    before = [await scenario.pod("1", namespace=TEAM, node=node) for _ in range(4)]
    if not await scenario.are_bound(before):
        return False
    scenario.context.faults.slow_nodes.add(slow)
    with patch.object(quota_ledger, "PODS_AT_ONCE", 1):
        await scenario.quotas.put({"name": "root", "min": {CPU: "60"}, "max": {CPU: "60"}, "children": _ten_each()})
        during = [await scenario.pod("1", namespace=TEAM, node=slow) for _ in range(6)]
        await _are_assumed(scenario, *during)
        await scenario.context.pause(1.5, 1.5)
    last = await scenario.pod("1", namespace=TEAM, node=node)
    await scenario.must_stay(
        "a pod exceeds a tree during whose count others were assumed",
        lambda: not are_bound(scenario.context, [last]),
        invariant="I14",
    )
    scenario.context.faults.slow_nodes.discard(slow)
    return await scenario.must_be_bound("their binds were slow", *during)


def _ten_each() -> list[dict[str, Any]]:
    return [leaf(name, 0, 10) for name in NAMESPACES]


async def _reclaim_from_one_gang_for_two_members(scenario: EditScenario) -> bool:
    """Two members reclaim their min. A gang of another team has one member beyond its minimum, and is evicted whole."""
    await scenario.use_levels(3, leaf(TEAM, 2, 3), leaf(OTHER, 0, 3))
    nodes = [await scenario.node(1) for _ in range(3)]
    borrowing, claiming = (f"{scenario.pool}-borrowing", 2), (f"{scenario.pool}-claiming", 2)
    victims = [await scenario.pod("1", namespace=OTHER, gang=borrowing, node=node) for node in nodes]
    if not await scenario.are_bound(victims):
        return False
    claims = [await scenario.pod("1", namespace=TEAM, gang=claiming) for _ in range(2)]
    return await scenario.must_be_bound("they reclaim their min", *claims, within_s=GANG_COMES_S)


# -- waking ------------------------------------------------------------------------------------------------------------


async def _refuse_equal_pods_otherwise(scenario: EditScenario) -> bool:
    """Equal pods wait for room. When there is room, another scheduler's pod there excludes them, and later no longer does."""
    node, labels = await scenario.node(2), {EXCLUDED: scenario.pool}
    before = await scenario.pod("2")
    if not await scenario.are_bound([before]):
        return False
    equal = [await scenario.pod("500m", affinity=anti_affinity(labels)) for _ in range(3)]
    if not await scenario.is_refused(*equal):
        return False
    world = scenario.context.world
    uid = await world.external_actors.place(node, labels=labels)
    await scenario.context.pause(1.0, 2.0)
    await world.user.delete_named(before)
    await scenario.context.pause(REFUSED_S, REFUSED_S)
    for pod in world.pods():
        if pod.uid == uid:
            await world.patch_pod(pod, {"metadata": {"labels": {EXCLUDED: None}}})
    return await scenario.must_be_bound("no pod excludes them any more", *equal)


async def _start_around_a_gated_member(scenario: EditScenario) -> bool:
    """A user binds two of three members of a gang, whose minimum is four. The minimum becomes two, and the third is bound."""
    node = await scenario.node(4)
    gang = await scenario.gangs.gang(scenario.pool, 3, 4, form=Form.PLUGINS)
    if not await scenario.gangs.until(lambda: len(scenario.gangs.members(gang)) == 3, REFUSED_S):
        return False
    *bound, last = scenario.gangs.members(gang)
    for pod in bound:
        await scenario.context.world.external_actors.bind(pod, node)
    await scenario.context.pause(1.0, 2.0)
    await scenario.gangs.edit_group(gang, minimum=2)
    await scenario.must_be_bound("its gang has started", last.name)
    gang.replicas = 0
    await scenario.gangs.delete_members(gang)
    return True


# -- the configuration file --------------------------------------------------------------------------------------------


async def _change_weight_beside_isolation(scenario: EditScenario) -> bool:
    """A profile changes a weight, and a setting for which it waits for a restart. Scores keep the weight in force."""
    document: dict[str, Any] = copy.deepcopy(dict(scenario.context.setting.document))
    domain = next(one for one in document["domains"] if one["name"] == FORECAST)
    isolated = {"name": "NodeAffinity", "isolation": "thread", "timeout": "200ms"}
    domain["profile"] = {"plugins": {"enabled": [isolated, {"name": "TaintToleration", "weight": 90}]}}
    replicas = scenario.context.replicas
    replicas.change_file(ChangedFile(text_of(document), is_good=True))
    await scenario.context.pause(LATE_MAX_S + 2.0, LATE_MAX_S + 3.0)
    for cpu in (2, 4, 8):
        await scenario.node(cpu)
    names = [await scenario.pod("100m") for _ in range(4)]
    return await scenario.are_bound(names)


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "equal pods refused otherwise": _refuse_equal_pods_otherwise,
    "excluded pod elsewhere before a bind": _place_excluded_pod_elsewhere,
    "gang reclaims from another gang": _reclaim_from_one_gang_for_two_members,
    "gang starts around a gated member": _start_around_a_gated_member,
    "node filled before a gang's bind": _fill_node_of_a_waiting_member,
    "member joins a gang that waits": _add_member_to_a_waiting_gang,
    "pods assumed while a tree is counted": _assume_pods_while_a_tree_is_counted,
    "weight changed beside isolation": _change_weight_beside_isolation,
}
