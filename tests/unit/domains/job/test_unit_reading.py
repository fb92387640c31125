"""What is wrong with policies in the plugin's args: each problem names its field and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from domains.job.units.policy import Next
from domains.job.units.reading import configured_policies, is_int32, object_policy
from multisched.framework.plugin_args import PluginArgsError
from multisched.model.decode_objects import decode_resource_policy

EXAMPLES = Path(__file__).parents[4] / "domains" / "job" / "examples"


def args(*units: Any, **fields: Any) -> dict[str, Any]:
    return {"policies": [{"name": "web", "units": list(units) or [{}], **fields}]}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (args(name="Web"), "args.policies[0].name: 'Web' is no name; write lower-case letters, digits and -"),
        (args(units=[]), "args.policies[0].units: is empty; write at least one unit"),
        (args({"resource": "elastic"}), "resource: elastic is deprecated and not supported; write ecs"),
        (args({"resource": "gcp"}), "args.policies[0].units[0].resource: 'gcp' is not known; write ecs, eci or acs"),
        (args({"max": 0}), "units[0].max: 0 would keep all pods out; write 1 or more, or remove the unit"),
        (args({"maxResources": {"cpu": "x"}}), "units[0].maxResources: cpu: 'x' is not a quantity"),
        (args({"maxResources": {"cpu": 0}}), "units[0].maxResources: 0 would keep all pods out"),
        (args({"podLabels": {"a b": "c"}}), "units[0].podLabels: a b=c is not a label; correct it"),
        (args({"scaleInWeight": 2**31}), "units[0].scaleInWeight: 2147483648 is not within"),
        (args({"spotInstance": True}), "units[0].spotInstance: is not supported; write the provider's annotation"),
        (args(whenTryNextUnits={"policy": "Never"}), "whenTryNextUnits.policy: 'Never' is not known"),
        (args(whenTryNextUnits={"timeout": "15"}), "whenTryNextUnits.timeout:"),
        (args(preemptPolicy="Now"), "preemptPolicy: 'Now' is not known"),
        (args(ignorePreviousPod=True), "ignorePreviousPod: unknown field"),
        (args(*([{}] * 101)), "units: has 101 entries, more than 100"),
    ],
)
def test_wrong_args_are_refused_with_field_and_fix(given: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginArgsError) as refused:
        configured_policies(given)
    assert message in str(refused.value)


def test_both_spellings_and_defaults_are_read() -> None:
    for text in ("LackResourceAndNoTerminating", "LackResourceAndNoterminating"):
        (policy,) = configured_policies(args(whenTryNextUnits={"policy": text}))
        assert policy.next is Next.LACK_AND_NONE_TERMINATING
    (policy,) = configured_policies(args({}, {"scaleInWeight": 3}))
    assert (policy.next, policy.timeout_s, policy.counts_terminating) == (Next.LACK_OR_MAX, 900.0, False)
    assert [unit.cost for unit in policy.units] == [100, 3]


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ("0", True),
        ("-5", True),
        ("2147483647", True),
        ("2147483648", False),
        ("+1", False),
        ("01", False),
        ("", False),
        ("-0", False),
    ],
)
def test_deletion_cost_is_an_int32_as_kubernetes_reads_it(text: str, is_valid: bool) -> None:
    assert is_int32(text) is is_valid


def test_examples_are_valid() -> None:
    documents = [one for file in EXAMPLES.glob("*.yaml") for one in yaml.safe_load_all(file.read_text("utf-8"))]
    policies = [one for one in documents if one["kind"] == "ResourcePolicy"]
    assert policies
    for document in policies:
        document["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
        found = decode_resource_policy(orjson.dumps(document))
        assert (found.malformed, object_policy(found).problem, found.created_s) == ("", "", 1767225600.0)
        assert len(object_policy(found).units) == 2


def test_unreadable_policy_names_itself() -> None:
    broken = decode_resource_policy(b'{"metadata": {"name": "web", "namespace": "shop"}, "spec": 5}')
    assert object_policy(broken).problem.startswith("ResourcePolicy shop/web: ")
