"""What `deploy/` asks of a cluster: the least rights, a hardened pod, and a configuration that is good."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from typing import Any, get_type_hints

import orjson
import yaml
from msgspec.structs import replace

from domains.gpu.dialects import DIALECTS
from domains.gpu.gpu_ledger import GpuLedger
from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.config import loading
from multisched.config.plugins import plugin_registry
from multisched.model.cluster_objects import LIFT_ANNOTATION, TREE_NAMESPACE
from multisched.model.object_kinds import ObjectKind
from multisched.observe.admission_view import VALIDATE_QUOTAS_PATH
from multisched.plugins.loans.recalls import LOAN_NOTICE
from multisched.plugins.quota.elastic_quota import ElasticQuota
from multisched.plugins.quota.quota_ledger import QuotaLedger
from multisched.plugins.quota.quota_source import QUOTA_KINDS
from multisched.testing.sim_loop import SimClock, SimLoop, simulate

DEPLOY = Path(__file__).parents[3] / "deploy"
BASE = DEPLOY / "base"

Rule = tuple[str, str, str, tuple[str, ...]]
"""API group, resource, verb, resource names."""


def kinds_with_statuses() -> set[ObjectKind]:
    """Those whose status a plugin that ships writes."""
    registry = plugin_registry()
    factories = [registry.factory(name) for name in registry.names()]
    made = [one if inspect.isclass(one) else get_type_hints(one)["return"] for one in factories]
    return {kind for plugin in made for kind in getattr(plugin, "status_kinds", ())}


CLUSTER_RULES: set[Rule] = {
    ("", "pods", "get", ()),
    ("", "pods", "list", ()),
    ("", "pods", "watch", ()),
    ("", "pods", "delete", ()),
    ("", "nodes", "get", ()),
    ("", "nodes", "list", ()),
    ("", "nodes", "watch", ()),
    *(
        (kind.definition.group, kind.definition.plural, verb, ())
        for kind in ObjectKind
        for verb in ("get", "list", "watch")
    ),
    *(
        (kind.definition.group, f"{kind.definition.plural}{'/status' * kind.definition.has_status_path}", "patch", ())
        for kind in kinds_with_statuses()
    ),
    ("multisched.io", "slicesets", "create", ()),
    ("multisched.io", "slicesets", "update", ()),
    ("multisched.io", "slicesets/status", "update", ()),
    ("scheduling.k8s.io", "priorityclasses", "list", ()),
    ("metrics.k8s.io", "pods", "list", ()),
    ("", "persistentvolumes", "patch", ()),
    ("", "persistentvolumeclaims", "patch", ()),
    ("", "nodes", "patch", ()),
    ("", "pods/binding", "create", ()),
    ("", "pods/eviction", "create", ()),
    ("", "pods/status", "patch", ()),
    ("events.k8s.io", "events", "create", ()),
    ("events.k8s.io", "events", "patch", ()),
    ("authentication.k8s.io", "tokenreviews", "create", ()),
    ("authorization.k8s.io", "subjectaccessreviews", "create", ()),
}


def documents() -> list[dict[str, Any]]:
    """Every object of the base, in the order of the kustomization."""
    found = []
    for name in kustomization()["resources"]:
        found += [document for document in yaml.safe_load_all((BASE / name).read_text()) if document]
    return found


def kustomization() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    return loaded


def the(kind: str, name: str = "multisched") -> dict[str, Any]:
    (only,) = [d for d in documents() if d["kind"] == kind and d["metadata"]["name"] == name]
    return only


def rules(role: dict[str, Any]) -> set[Rule]:
    return {
        (group, resource, verb, tuple(rule.get("resourceNames", ())))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def pod_spec() -> dict[str, Any]:
    spec: dict[str, Any] = the("Deployment")["spec"]["template"]["spec"]
    return spec


def test_every_file_belongs_to_the_base_and_parses() -> None:
    listed = {*kustomization()["resources"], "kustomization.yaml", "multisched.yaml"}
    assert {path.name for path in BASE.iterdir()} == listed
    assert all({"apiVersion", "kind", "metadata"} <= document.keys() for document in documents())


def test_cluster_role_has_exactly_the_rights_that_the_program_uses() -> None:
    assert rules(the("ClusterRole")) == CLUSTER_RULES


def test_leases_are_granted_by_name_in_one_namespace_only() -> None:
    names = tuple(f"multisched-{domain.name}" for domain in loading.default().domains)
    assert rules(the("Role", "multisched-leases")) == {
        ("coordination.k8s.io", "leases", "create", ()),
        ("coordination.k8s.io", "leases", "get", names),
        ("coordination.k8s.io", "leases", "update", names),
    }
    assert loading.default().lease.name_prefix == "multisched"


def test_repair_progress_is_granted_by_name_in_one_namespace_only() -> None:
    names = ("multisched-repair-forecast", "multisched-repair-gpu", "multisched-repair-job")
    assert rules(the("Role", "multisched-repair")) == {
        ("", "configmaps", "create", ()),
        ("", "configmaps", "get", names),
        ("", "configmaps", "update", names),
    }


def test_tree_in_force_is_granted_by_name_in_one_namespace_only() -> None:
    names = (f"multisched-{ElasticQuota.kept_kind.definition.plural}",)
    assert rules(the("Role", "multisched-quotas")) == {
        ("", "configmaps", "create", ()),
        ("", "configmaps", "get", names),
        ("", "configmaps", "update", names),
    }


def test_reader_of_repair_plans_cannot_start_repairs() -> None:
    (rule,) = [r for r in the("ClusterRole", "multisched-reader")["rules"] if "repair" in str(r)]
    assert rule["verbs"] == ["get"]
    assert the("ClusterRole", "multisched-repairer")["rules"] == [
        {"nonResourceURLs": ["/multisched/api/v1/repair"], "verbs": ["get", "post"]}
    ]


def test_no_role_has_a_wildcard() -> None:
    for role in documents():
        if role["kind"] in ("Role", "ClusterRole"):
            assert "*" not in str(role["rules"])


def test_readers_are_granted_the_paths_that_the_server_authorizes() -> None:
    assert the("ClusterRole", "multisched-reader")["rules"] == [
        {
            "nonResourceURLs": [
                "/metrics",
                *(
                    f"/multisched/api/v1/{name}"
                    for name in ("queue", "forecast", "gpu", "tide", "jobs", "units", "loans", "configuration")
                ),
            ],
            "verbs": ["get"],
        },
        {
            "nonResourceURLs": [
                f"/multisched/api/v1/{name}"
                for name in ("overview", "decisions", "pending", "nodes", "quotas", "gangs")
            ],
            "verbs": ["get"],
        },
        {"nonResourceURLs": ["/multisched/api/v1/explain"], "verbs": ["get", "post"]},
        {"nonResourceURLs": ["/multisched/api/v1/repair"], "verbs": ["get"]},
    ]


def test_all_roles_are_bound_to_the_one_service_account() -> None:
    account = {"kind": "ServiceAccount", "name": "multisched", "namespace": kustomization()["namespace"]}
    for kind, name in (
        ("ClusterRoleBinding", "multisched"),
        ("RoleBinding", "multisched-leases"),
        ("RoleBinding", "multisched-quotas"),
        ("RoleBinding", "multisched-repair"),
    ):
        assert the(kind, name)["subjects"] == [account]
        assert the(kind, name)["roleRef"]["name"] == name
    assert pod_spec()["serviceAccountName"] == account["name"]


def test_the_pod_is_hardened() -> None:
    spec = pod_spec()
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "privileged": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}


def test_probes_use_a_separate_port_of_the_server() -> None:
    (container,) = pod_spec()["containers"]
    server = loading.load(BASE / "multisched.yaml").server
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"metrics": server.port, "probes": server.probe_port}
    for probe, path in (("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "probes", "scheme": "HTTP"}
    assert not server.is_loopback
    assert server.is_authenticating


def test_policies_protect_every_annotation_that_only_the_scheduler_writes() -> None:
    annotations = the("ValidatingAdmissionPolicy", "multisched-gpu-annotations")["spec"]["validations"]
    bindings = the("ValidatingAdmissionPolicy", "multisched-gpu-bindings")["spec"]["validations"]

    ledger = GpuLedger()
    fixed = ledger.annotations | ledger.written  # what the tide writes is not fixed at the bind
    own = [
        {key for key in keys if key.startswith("multisched.io/")} | {LOAN_NOTICE} for keys in (fixed, ledger.written)
    ]
    for validations, keys in zip((annotations, bindings), own, strict=True):
        named = [re.findall(r"multisched\.io/[a-z-]+", validation["expression"]) for validation in validations]
        assert sorted(found[0] for found in named) == sorted(keys)
        for validation, found in zip(validations, named, strict=True):
            assert len(set(found)) == 1
            assert validation["message"].startswith(f"metadata.annotations[{found[0]}]: ")
            assert validation["reason"] == "Forbidden", "the program takes it for a matter of its rights"


def test_policy_protects_the_annotations_of_other_gpu_dialects() -> None:
    policy = the("ValidatingAdmissionPolicy", "multisched-gpu-dialects")["spec"]
    expressions = {one["name"]: one["expression"] for one in policy["variables"]}
    written = {key for key in GpuLedger().written if not key.startswith("multisched.io/")}

    assert set(re.findall(r"'([^']+)'", expressions["keys"])) == written
    assert "'system:serviceaccount:multisched-system:multisched'" in expressions["writers"]
    assert policy["validations"][0]["reason"] == "Forbidden"


def test_policy_allows_the_scheduler_to_write_only_node_locks() -> None:
    policy = the("ValidatingAdmissionPolicy", "multisched-gpu-locks")["spec"]
    locks = [
        dialect.node_lock.annotation
        for dialect in DIALECTS
        if dialect.node_lock and dialect.node_lock.is_written_before_bind
    ]

    assert "system:serviceaccount:multisched-system:multisched" in policy["matchConditions"][0]["expression"]
    assert set(re.findall(r"key == '([^']+)'", policy["validations"][0]["expression"])) == set(locks)
    assert policy["validations"][0]["reason"] == "Forbidden"


def test_policies_exempt_the_service_account_of_the_base() -> None:
    account, namespace = the("ServiceAccount")["metadata"]["name"], kustomization()["namespace"]
    text = (BASE / "admission.yaml").read_text()

    assert set(re.findall(r"system:serviceaccount:[a-z:-]+", text)) == {f"system:serviceaccount:{namespace}:{account}"}
    bound = {d["spec"]["policyName"] for d in documents() if d["kind"] == "ValidatingAdmissionPolicyBinding"}
    assert bound == {d["metadata"]["name"] for d in documents() if d["kind"] == "ValidatingAdmissionPolicy"}


def test_embedded_cluster_stores_the_policies() -> None:
    loop = SimLoop(seed=1)

    async def store() -> None:
        api = DirectTransport(ApiServer(SimClock(loop), rbac=False))
        root = "/apis/admissionregistration.k8s.io/v1"
        plural = {
            "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
            "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
        }
        for document in yaml.safe_load_all((BASE / "admission.yaml").read_text()):
            path, name = f"{root}/{plural[document['kind']]}", document["metadata"]["name"]
            assert (await api.request("POST", path, body=orjson.dumps(document))).status == 201
            stored = orjson.loads((await api.request("GET", f"{path}/{name}")).body)
            assert stored["spec"].items() >= document["spec"].items()

    simulate(store(), loop)


def overlay(name: str) -> Any:
    return yaml.safe_load((DEPLOY / "webhook" / name).read_text())


def test_overlay_serves_the_webhook_with_a_mounted_certificate() -> None:
    base, own = loading.load(BASE / "multisched.yaml"), loading.load(DEPLOY / "webhook" / "multisched.yaml")
    changes = {"tls": own.server.tls, "quota_webhook": True}
    assert own == replace(base, server=replace(base.server, **changes))
    spec = overlay("deployment.yaml")["spec"]["template"]["spec"]
    ((mount,), (volume,)) = spec["containers"][0]["volumeMounts"], spec["volumes"]
    assert own.server.tls.cert_file == f"{mount['mountPath']}/tls.crt"
    assert own.server.tls.key_file == f"{mount['mountPath']}/tls.key"
    assert mount["name"] == volume["name"]
    assert overlay("networkpolicy.yaml")["spec"]["ingress"] == [{"ports": [{"port": "metrics", "protocol": "TCP"}]}]


def test_webhook_covers_all_quota_kinds_and_uses_the_served_path() -> None:
    (webhook,) = overlay("validatingwebhook.yaml")["webhooks"]
    (port,) = the("Service")["spec"]["ports"]
    assert webhook["clientConfig"]["service"] == {
        "name": the("Service")["metadata"]["name"],
        "namespace": kustomization()["namespace"],
        "path": VALIDATE_QUOTAS_PATH,
        "port": port["port"],
    }
    asked = {
        (f"{group}/{version}", plural)
        for rule in webhook["rules"]
        for group in rule["apiGroups"]
        for version in rule["apiVersions"]
        for plural in rule["resources"]
    }
    assert asked == {(kind.definition.api_version, kind.definition.plural) for kind in QUOTA_KINDS}
    assert webhook["failurePolicy"] == "Ignore", "a broken tree is never in force anyway"


def test_the_policies_of_quotas_match_the_kinds_that_are_read() -> None:
    for name, kinds in (
        ("multisched-quota-trees", {ObjectKind.ELASTIC_QUOTA_TREE}),
        ("multisched-elastic-quotas", {ObjectKind.ELASTIC_QUOTA, ObjectKind.KOORDINATOR_QUOTA}),
    ):
        spec = the("ValidatingAdmissionPolicy", name)["spec"]
        (rule,) = spec["matchConstraints"]["resourceRules"]
        assert {kind.definition.group for kind in kinds} == set(rule["apiGroups"])
        assert {kind.definition.plural for kind in kinds} == set(rule["resources"])
        assert spec["failurePolicy"] == "Ignore"
        variables = {one["name"] for one in spec["variables"]}
        used = set(re.findall(r"variables\.(\w+)", str(spec["validations"]) + str(spec["variables"])))
        assert used == variables


def test_policy_forbids_changing_the_quota_label_of_bound_pods() -> None:
    spec = the("ValidatingAdmissionPolicy", "multisched-quota-labels")["spec"]
    (validation,) = spec["validations"]
    assert set(re.findall(r"'([^']+)'", validation["expression"])) == QuotaLedger.fixed_labels
    assert (spec["failurePolicy"], validation["reason"]) == ("Fail", "Forbidden")


def test_policy_requires_the_consent_annotation_that_the_scheduler_reads() -> None:
    spec = the("ValidatingAdmissionPolicy", "multisched-quota-deletions")["spec"]
    (rule,), (validation,) = spec["matchConstraints"]["resourceRules"], spec["validations"]
    assert rule["operations"] == ["DELETE"]
    assert rule["resources"] == [ObjectKind.ELASTIC_QUOTA_TREE.definition.plural]
    assert f"[?'{LIFT_ANNOTATION}'].orValue('') == 'true'" in validation["expression"]
    assert f"request.namespace == '{TREE_NAMESPACE}'" in spec["matchConditions"][0]["expression"]


def test_only_the_kubelet_reaches_the_probe_port() -> None:
    (rule,) = the("NetworkPolicy")["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == ["metrics"]
    assert [port["name"] for port in the("Service")["spec"]["ports"]] == ["metrics"]


def test_network_policy_allows_prometheus_in_both_directions() -> None:
    spec = the("NetworkPolicy")["spec"]
    labelled = [{"namespaceSelector": {"matchLabels": {"multisched.io/scrapers": "true"}}}]
    assert [rule["from"] for rule in spec["ingress"]] == [labelled]
    assert [rule["ports"] for rule in spec["egress"] if rule.get("to") == labelled] == [
        [{"port": 9090, "protocol": "TCP"}]
    ]


def test_shipped_configuration_differs_from_the_default_in_server_only() -> None:
    shipped, default = loading.load(BASE / "multisched.yaml"), loading.default()
    assert replace(shipped, server=default.server) == default


def test_files_named_in_the_arguments_are_mounted() -> None:
    spec = pod_spec()
    (container,) = spec["containers"]
    (generated,) = kustomization()["configMapGenerator"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert container["args"] == ["run", "--config", f"{mounts['config']}/{generated['files'][0]}"]
    assert volumes["config"]["configMap"]["name"] == generated["name"]
    # The rest of the file system is read-only.
    writable = {name: path for name, path in mounts.items() if "emptyDir" in volumes[name]}
    assert writable == {"tmp": "/tmp", "state": "/var/lib/multisched"}


def test_one_replica_stays_available_during_upgrades_and_node_drains() -> None:
    deployment, budget = the("Deployment"), the("PodDisruptionBudget")
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert budget["spec"]["minAvailable"] == 1
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (
        deployment["spec"]["selector"],
        budget["spec"]["selector"],
        the("NetworkPolicy")["spec"]["podSelector"],
        *(constraint["labelSelector"] for constraint in pod_spec()["topologySpreadConstraints"]),
    ):
        assert selector["matchLabels"].items() <= labels.items()
    assert pod_spec()["priorityClassName"] == "system-cluster-critical"
    assert pod_spec()["schedulerName"] == "default-scheduler", "it must not wait for itself"
    assert pod_spec()["terminationGracePeriodSeconds"] >= 15


def test_image_installs_by_hash_and_runs_as_user_nobody() -> None:
    lines = (DEPLOY / "Dockerfile").read_text()
    instructions = lines.replace("\\\n", " ").splitlines()
    installs = [line for line in instructions if "pip install" in line]
    assert installs
    assert all("--require-hashes" in line and "--only-binary=:all:" in line for line in installs)
    assert "index-url" not in lines
    assert "://" not in lines
    users = [line for line in instructions if line.startswith("USER")]
    assert users == ["USER 65532:65532"]
    assert sum(line.startswith("FROM") for line in instructions) == 2


def test_image_has_the_tested_python_version() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    tested = project["requires-python"].removeprefix(">=")
    assert f"ARG PYTHON={tested}-slim\n" in (DEPLOY / "Dockerfile").read_text()


def test_lock_file_has_hashes_and_names_no_index() -> None:
    text = (DEPLOY / "requirements.txt").read_text()
    pinned = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert pinned
    assert all("==" in line for line in pinned)
    assert text.count("--hash=sha256:") >= len(pinned)
    assert "index-url" not in text
    assert "://" not in text
