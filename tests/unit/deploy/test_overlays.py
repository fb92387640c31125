"""The overlays of `deploy/overlays`: what each has beyond the base. `tests/real` renders and installs them."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from domains.forecast.settings.args import PeakSettings
from multisched.config import loading
from multisched.config.nodes import lease_groups_of
from multisched.config.schema import Configuration

DEPLOY = Path(__file__).parents[3] / "deploy"
OVERLAYS = DEPLOY / "overlays"
NAMES = ("forecast", "minimal", "scale-out", "two-replicas")


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def forecast_args(config: Configuration) -> dict[str, Any]:
    """What the domain forecast says to PeakForecast."""
    (domain,) = [one for one in config.domains if one.name == "forecast"]
    (args,) = [plugin.args for plugin in domain.profile.plugins.enabled if plugin.name == "PeakForecast"]
    return dict(args or {})


def test_list_of_overlays_is_complete() -> None:
    assert tuple(sorted(path.name for path in OVERLAYS.iterdir())) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_file_belongs_to_the_overlay(name: str) -> None:
    folder = OVERLAYS / name
    kustomization = parsed(folder / "kustomization.yaml")
    assert kustomization["resources"] == ["../../base"]
    listed = {patch["path"] for patch in kustomization.get("patches", ()) if "path" in patch}
    listed |= {file for one in kustomization.get("configMapGenerator", ()) for file in one["files"]}
    assert {path.name for path in folder.iterdir()} == {"kustomization.yaml", *listed}


def test_forecast_overlay_adds_a_history_to_the_base() -> None:
    base, own = loading.load(DEPLOY / "base/multisched.yaml"), loading.load(OVERLAYS / "forecast/multisched.yaml")
    assert replace(own, domains=base.domains) == base
    assert [domain.name for domain in own.domains] == [domain.name for domain in base.domains]
    settings = PeakSettings.from_config(forecast_args(own))
    assert settings.learning is not None
    assert settings.learning.history is not None
    assert {type(source).__name__ for source in settings.learning.history.sources} == {
        "LoadSettings",
        "PrometheusSettings",
    }


def test_forecast_overlay_stores_profiles_in_a_writable_directory() -> None:
    spec = parsed(DEPLOY / "base/deployment.yaml")["spec"]["template"]["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    file = PurePosixPath(forecast_args(loading.load(OVERLAYS / "forecast/multisched.yaml"))["profilesFile"])
    assert str(file.parent) == mounts["state"]


def test_scale_out_has_a_replica_and_a_lease_per_domain() -> None:
    base, own = loading.load(DEPLOY / "base/multisched.yaml"), loading.load(OVERLAYS / "scale-out/multisched.yaml")
    assert own == replace(base, lease=replace(base.lease, per_domain=True, spread=True))
    (replicas,) = parsed(OVERLAYS / "scale-out" / "kustomization.yaml")["replicas"]
    assert replicas == {"name": "multisched", "count": len(set(lease_groups_of(own).values()))}


RULES_OF_MINIMAL = {"pods/eviction": ["create"], "nodes": ["patch"]}
"""The rules that the overlay removes: resource -> verbs."""


def test_minimal_removes_the_rules_that_it_means() -> None:
    """A JSON patch names rules by index, so a new rule in the base moves them."""
    patches = parsed(OVERLAYS / "minimal" / "kustomization.yaml")["patches"]
    (role,) = [one for one in patches if one.get("target") == {"kind": "ClusterRole", "name": "multisched"}]
    documents = yaml.safe_load_all((DEPLOY / "base/rbac.yaml").read_text())
    rules = next(one["rules"] for one in documents if one["metadata"]["name"] == "multisched")
    removed: dict[str, list[str]] = {}
    for step in yaml.safe_load(role["patch"]):
        _, _, index, *field = step["path"].split("/")
        if step["op"] == "test":
            assert rules[int(index)][field[0]][int(field[1])] == step["value"]
        else:
            (resource,) = rules[int(index)]["resources"]
            removed[resource] = rules.pop(int(index))["verbs"]
    assert removed == RULES_OF_MINIMAL
