"""StatefulSets through kubectl: order, claims, rollout forward and back, scale."""

from __future__ import annotations

from tests.integration.kubectl.conftest import Document, Kubectl, pod, rows


def stateful_set(name: str, node: str, replicas: int = 2, **spec: object) -> Document:
    """With one claim per pod, of a class that nobody provisions: its pods are on their node already."""
    template = pod(name, on=node)
    template["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "nobody",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": template["spec"]},
            "volumeClaimTemplates": [claim],
            **spec,
        },
    }


def rolled_out(ctl: Kubectl) -> None:
    ctl("rollout", "status", "statefulset/db", "--timeout=60s")


def images(ctl: Kubectl) -> dict[str, str]:
    found = ctl.get("pods", "-l", "app=db")["items"]
    return {p["metadata"]["name"]: p["spec"]["containers"][0]["image"] for p in found}


def test_stateful_set_pods_and_claims_have_stable_names(ctl: Kubectl, node: str) -> None:
    ctl("create", "-f", "-", stdin=stateful_set("db", node))
    rolled_out(ctl)
    [row] = rows(ctl("get", "statefulsets"))
    assert (row["NAME"], row["READY"]) == ("db", "2/2")
    assert ctl.names("pods") == ["pod/db-0", "pod/db-1"]
    claims = [f"persistentvolumeclaim/data-db-{n}" for n in range(2)]
    assert ctl.names("pvc") == claims

    first = ctl.get("pod", "db-1")
    assert first["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "1"
    assert first["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] == "db-1"
    assert (first["spec"]["hostname"], first["spec"]["subdomain"]) == ("db-1", "db")
    assert first["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == "data-db-1"
    status = ctl.get("statefulset", "db")["status"]
    assert (
        status["currentRevision"] == status["updateRevision"] == first["metadata"]["labels"]["controller-revision-hash"]
    )
    assert {k: status[k] for k in ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas")} == {
        "replicas": 2, "readyReplicas": 2, "availableReplicas": 2, "updatedReplicas": 2,
    }  # fmt: skip
    assert "SuccessfulCreate" in ctl("describe", "statefulset", "db")

    ctl("delete", "statefulset", "db")
    ctl("wait", "--for=delete", "pod", "-l", "app=db", "--timeout=60s")
    assert ctl.names("pvc") == claims


def test_scale_down_removes_the_last_pod_and_its_claim_by_policy(ctl: Kubectl, node: str) -> None:
    policy = {"whenScaled": "Delete", "whenDeleted": "Retain"}
    ctl("create", "-f", "-", stdin=stateful_set("db", node, 3, persistentVolumeClaimRetentionPolicy=policy))
    rolled_out(ctl)
    ctl("scale", "statefulset/db", "--replicas=1")
    ctl("wait", "--for=delete", "pvc/data-db-1", "pvc/data-db-2", "--timeout=60s")
    assert ctl.names("pods") == ["pod/db-0"]
    ctl("scale", "statefulset/db", "--replicas=2")
    rolled_out(ctl)
    assert len(ctl.names("pvc")) == 2


def test_partitioned_rollout_stops_continues_and_reverts(ctl: Kubectl, node: str) -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    ctl("create", "-f", "-", stdin=stateful_set("db", node, updateStrategy=rolling))
    rolled_out(ctl)
    ctl("set", "image", "statefulset/db", "main=app:2")
    rolled_out(ctl)
    assert images(ctl) == {"db-0": "app:1", "db-1": "app:2"}
    ctl("patch", "statefulset", "db", "-p", '{"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}}')
    rolled_out(ctl)
    assert images(ctl) == {"db-0": "app:2", "db-1": "app:2"}

    history = ctl("rollout", "history", "statefulset/db")
    assert [line.split()[0] for line in history.splitlines()[2:] if line] == ["1", "2"]
    assert "app:1" in ctl("rollout", "history", "statefulset/db", "--revision=1")
    ctl("rollout", "undo", "statefulset/db")
    rolled_out(ctl)
    assert set(images(ctl).values()) == {"app:1"}
    before = ctl.get("pod", "db-0")["metadata"]["uid"]
    ctl("rollout", "restart", "statefulset/db")
    rolled_out(ctl)
    assert ctl.get("pod", "db-0")["metadata"]["uid"] != before


def test_parallel_pods_do_not_wait_for_each_other(ctl: Kubectl) -> None:
    ctl("create", "-f", "-", stdin=stateful_set("db", "", 3, podManagementPolicy="Parallel"))
    ctl("wait", "--for=jsonpath={.status.replicas}=3", "statefulset/db", "--timeout=60s")
    assert rows(ctl("get", "statefulset", "db"))[0]["READY"] == "0/3"


def test_immutable_stateful_set_fields_are_refused(ctl: Kubectl) -> None:
    ctl("create", "-f", "-", stdin=stateful_set("db", "", 0))
    complaint = ctl.fails("patch", "statefulset", "db", "-p", '{"spec": {"serviceName": "other"}}')
    assert "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template'" in complaint
    assert "must be 'OrderedReady' or 'Parallel'" in ctl.fails(
        "create", "-f", "-", stdin=stateful_set("other", "", podManagementPolicy="Sideways")
    )
