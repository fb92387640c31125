"""Everything that `deploy/` and the examples hold, judged by kubeconform with the schemas of a real API server."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.real.admin import Admin
from tests.real.control_plane import ControlPlane
from tests.real.rendering import BASE, DEPLOY, OVERLAYS, Object, RefusedError, kustomized, templated, the, tools
from tests.real.schemas import conform, wait_published, write_schemas

pytestmark = pytest.mark.timeout(240)

ROOT = DEPLOY.parent
EXAMPLES = sorted([*ROOT.glob("domains/*/example.yaml"), *ROOT.glob("config/examples/quotas/*.yaml")])
KUEUE = "kueue.x-k8s.io/"
"""Of which an example is read, and which nobody here defines."""
DEFINITIONS = sorted((DEPLOY / "crds").glob("*.yaml"))
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "own domains": {"config": {"domains": [{"name": "services", "profile": {"base": "forecast"}}, {"name": "gpu"}]}},
    "a forecast and repair": {
        "forecast": {"prometheus": {"url": "http://prometheus.monitoring.svc:9090"}, "metricsApi": True},
        "repair": {"settings": {"mode": "preview"}},
        "profiles": {"volume": {"persistentVolumeClaim": {"claimName": "profiles"}}},
        "networkPolicy": {"extraEgress": [{"ports": [{"port": 8888, "protocol": "TCP"}]}]},
    },
    "everything else": {
        "replicaCount": 1,
        "image": {"repository": "registry.example.com/multisched", "digest": f"sha256:{'0' * 64}"},
        "imagePullSecrets": [{"name": "registry"}],
        "monitoring": {name: {"enabled": True} for name in ("serviceMonitor", "rules", "dashboards")},
        "rbac": {
            role: [{"kind": "ServiceAccount", "name": "a", "namespace": "b"}] for role in ("readers", "repairers")
        },
        "quotaWebhook": {"enabled": True, "caBundle": "QQ=="},
        "serviceAccount": {"annotations": {"a": "b"}},
        "service": {"annotations": {"a": "b"}},
        "spreadOverNodes": "DoNotSchedule",
        "podAnnotations": {"a": "b"},
        "podLabels": {"a": "b"},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "extraArgs": ["--help"],
        "extraEnv": [{"name": "PYTHONPATH", "value": "/plugins"}],
        "extraVolumes": [{"name": "plugins", "configMap": {"name": "plugins"}}],
        "extraVolumeMounts": [{"name": "plugins", "mountPath": "/plugins", "readOnly": True}],
    },
}


def documents(paths: Iterable[Path]) -> list[Object]:
    return [document for path in paths for document in yaml.safe_load_all(path.read_text()) if document]


async def test_every_object_is_valid_by_the_schemas_of_the_api_server(tmp_path: Path) -> None:
    """And the API server itself, which knows more than schemas, would store what the chart makes."""
    async with ControlPlane.start(tmp_path, controller_manager=False) as plane, Admin.open(plane) as admin:
        operators = sorted(tools().glob("monitoring.coreos.com_*.yaml"))
        await plane.kubectl("apply", "--server-side", *(f"--filename={path}" for path in [*DEFINITIONS, *operators]))
        await wait_published(admin, documents([*DEFINITIONS, *operators]))
        schemas = tmp_path / "schemas"
        assert await write_schemas(admin, schemas) > 100

        for folder in (BASE, DEPLOY / "webhook", *sorted(OVERLAYS.iterdir())):
            conform(kustomized(folder), schemas)
        examples = [one for one in documents(EXAMPLES) if not one["apiVersion"].startswith(KUEUE)]
        conform([*documents(DEFINITIONS), *examples], schemas)
        await plane.kubectl("create", "namespace", "multisched-system")
        for values in VALUES.values():
            objects = templated(values)
            conform(objects, schemas)
            whole = yaml.safe_dump_all(objects)
            await plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", document=whole)
        check_invalid_objects_are_refused(schemas)


def check_invalid_objects_are_refused(schemas: Path) -> None:
    objects = templated({"monitoring": {"serviceMonitor": {"enabled": True}}})
    for kind in ("Deployment", "NetworkPolicy", "ServiceMonitor"):
        wrong = copy.deepcopy(the(objects, kind))
        wrong["spec"]["slector"] = {}
        with pytest.raises(RefusedError, match="slector"):
            conform([wrong], schemas)
    unknown = {"apiVersion": "example.com/v1", "kind": "Unknown", "metadata": {"name": "x"}}
    with pytest.raises(RefusedError, match="Unknown"):
        conform([unknown], schemas)
