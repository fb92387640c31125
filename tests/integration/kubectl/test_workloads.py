"""Deployments, Jobs and CronJobs through kubectl: scale, rollout, wait, set."""

from __future__ import annotations

from tests.integration.kubectl.conftest import Document, Kubectl, deployment, pod, rows


def rolled_out(ctl: Kubectl, name: str = "web") -> None:
    ctl("rollout", "status", f"deployment/{name}", "--timeout=60s")


def images(ctl: Kubectl) -> set[str]:
    """What the Pods that are not on their way out run."""
    found = ctl.get("pods", "-l", "app=web")["items"]
    return {p["spec"]["containers"][0]["image"] for p in found if "deletionTimestamp" not in p["metadata"]}


def current(ctl: Kubectl) -> list[str]:
    """The ReplicaSet that has the Pods."""
    found = ctl.get("replicasets", "-l", "app=web")["items"]
    return [f"replicaset/{rs['metadata']['name']}" for rs in found if rs["spec"]["replicas"]]


def test_scale_up_and_down(ctl: Kubectl, node: str) -> None:
    ctl("create", "-f", "-", stdin=deployment("web", on=node, replicas=1))
    rolled_out(ctl)
    ctl("scale", "deployment/web", "--replicas=3")
    rolled_out(ctl)
    assert rows(ctl("get", "deployment", "web"))[0]["READY"] == "3/3"
    assert "from 1 to 3" in ctl("describe", "deployment", "web")
    ctl("scale", "deployment/web", "--replicas=1", "--current-replicas=3")
    ctl("wait", "--for=jsonpath={.status.replicas}=1", "deployment/web", "--timeout=60s")
    assert (
        "expected replicas to be 5"
        in ctl.fails("scale", "deployment/web", "--replicas=2", "--current-replicas=5").lower()
    )


def test_rollout_can_be_applied_and_undone(ctl: Kubectl, node: str) -> None:
    ctl("create", "-f", "-", stdin=deployment("web", on=node))
    rolled_out(ctl)
    ctl("set", "image", "deployment/web", "main=app:2")
    ctl("annotate", "deployment/web", "kubernetes.io/change-cause=second")
    rolled_out(ctl)
    assert images(ctl) == {"app:2"}
    ctl(
        "wait",
        "--for=jsonpath={.metadata.annotations.kubernetes\\.io/change-cause}=second",
        *current(ctl),
        "--timeout=60s",
    )
    history = ctl("rollout", "history", "deployment/web")
    assert [line.split()[0] for line in history.splitlines()[2:] if line] == ["1", "2"]
    assert "second" in history
    assert "app:1" in ctl("rollout", "history", "deployment/web", "--revision=1")
    ctl("rollout", "undo", "deployment/web")
    rolled_out(ctl)
    assert images(ctl) == {"app:1"}


def test_a_restart_replaces_every_pod(ctl: Kubectl, node: str) -> None:
    ctl("create", "-f", "-", stdin=deployment("web", on=node))
    rolled_out(ctl)
    before = set(ctl.names("pods"))
    ctl("rollout", "restart", "deployment/web")
    rolled_out(ctl)
    ctl("wait", "--for=delete", *sorted(before), "--timeout=60s")
    assert len(ctl.names("pods")) == 2


def test_a_paused_rollout_waits(ctl: Kubectl, node: str) -> None:
    ctl("create", "-f", "-", stdin=deployment("web", on=node))
    rolled_out(ctl)
    ctl("rollout", "pause", "deployment/web")
    ctl("set", "image", "deployment/web", "main=app:2")
    ctl("wait", "--for=jsonpath={.status.observedGeneration}=3", "deployment/web", "--timeout=60s")
    assert images(ctl) == {"app:1"}
    ctl("rollout", "resume", "deployment/web")
    rolled_out(ctl)
    assert images(ctl) == {"app:2"}


def test_rollout_over_its_deadline_reports_it(ctl: Kubectl) -> None:
    ctl("create", "-f", "-", stdin=deployment("web"))
    assert "timed out" in ctl.fails("rollout", "status", "deployment/web", "--timeout=1s")


def test_wait_for_conditions_values_creation_and_deletion(ctl: Kubectl, node: str) -> None:
    ctl("create", "-f", "-", stdin=pod("a", on=node))
    ctl("wait", "--for=condition=Ready", "pod/a", "--timeout=60s")
    ctl("wait", "--for=jsonpath={.status.phase}=Running", "pod/a", "--timeout=60s")
    ctl("wait", "--for=create", "pod/a", "--timeout=60s")
    assert "timed out" in ctl.fails("wait", "--for=condition=Nonsense", "pod/a", "--timeout=1s")
    ctl("delete", "pod", "a", "--wait=false")
    ctl("wait", "--for=delete", "pod/a", "--timeout=60s")


def job(name: str, node: str, **spec: object) -> Document:
    template = {**pod(name, on=node)["spec"], "restartPolicy": "Never"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {**spec, "template": {"spec": template}},
    }


def test_a_job_completes(ctl: Kubectl, node: str) -> None:
    ctl("create", "-f", "-", stdin=job("j", node, completions=3, parallelism=2))
    ctl("wait", "--for=condition=Complete", "job/j", "--timeout=60s")

    [row] = rows(ctl("get", "jobs"))
    assert (row["STATUS"], row["COMPLETIONS"]) == ("Complete", "3/3")
    assert len(ctl.names("pods", "-l", "job-name=j", "--field-selector", "status.phase=Succeeded")) == 3
    described = ctl("describe", "job", "j")
    assert "3 Succeeded" in described
    assert "Created pod: j-" in described
    ctl("delete", "job", "j")
    ctl("wait", "--for=delete", "pod", "-l", "job-name=j", "--timeout=60s")


def test_suspended_job_starts_when_resumed(ctl: Kubectl, node: str) -> None:
    ctl("create", "-f", "-", stdin=job("j", node, suspend=True))
    ctl("wait", "--for=condition=Suspended", "job/j", "--timeout=60s")
    assert ctl.names("pods") == []
    ctl("patch", "job", "j", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    ctl("wait", "--for=condition=Complete", "job/j", "--timeout=60s")


def test_a_job_made_from_a_cronjob(ctl: Kubectl) -> None:
    ctl("create", "cronjob", "cj", "--image=app:1", "--schedule=0 0 1 1 *")
    ctl("create", "job", "by-hand", "--from=cronjob/cj")
    assert ctl.get("job", "by-hand")["metadata"]["ownerReferences"][0]["name"] == "cj"
    assert rows(ctl("get", "cronjob", "cj"))[0]["SUSPEND"] == "False"


def test_set_resources_and_env(ctl: Kubectl) -> None:
    ctl("create", "-f", "-", stdin=deployment("web", replicas=0))
    ctl("set", "resources", "deployment/web", "--requests=cpu=200m", "--limits=cpu=1")
    ctl("set", "env", "deployment/web", "COLOUR=blue")
    [container] = ctl.get("deployment", "web")["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["cpu"] == "200m"
    assert container["env"] == [{"name": "COLOUR", "value": "blue"}]
    assert "COLOUR=blue" in ctl("set", "env", "deployment/web", "--list")
