"""kubectl's writing commands: create, apply in both ways, replace, edit, patch, label, annotate, delete."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.integration.kubectl.conftest import Document, Kubectl, config_map, deployment, pod


def test_apply_creates_then_does_nothing_then_changes(ctl: Kubectl) -> None:
    first = config_map("c", kept="1", dropped="1")
    assert ctl("apply", "-f", "-", stdin=first) == "configmap/c created\n"
    assert ctl("apply", "-f", "-", stdin=first) == "configmap/c unchanged\n"
    ctl("patch", "configmap", "c", "--type=merge", "-p", '{"data": {"theirs": "1"}}')
    assert ctl("apply", "-f", "-", stdin=config_map("c", kept="2", added="1")) == "configmap/c configured\n"

    # Three ways: what we no longer say goes, what another has added stays.
    assert ctl.get("configmap", "c")["data"] == {"kept": "2", "added": "1", "theirs": "1"}


def test_apply_merges_lists_by_their_keys(ctl: Kubectl) -> None:
    document = deployment("web")
    ctl("apply", "-f", "-", stdin=document)
    sidecar = {"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "side:1"}]}}}}
    ctl("patch", "deployment", "web", "-p", yaml.safe_dump(sidecar))
    document["spec"]["template"]["spec"]["containers"][0]["image"] = "app:2"
    ctl("apply", "-f", "-", stdin=document)

    containers = ctl.get("deployment", "web")["spec"]["template"]["spec"]["containers"]
    assert {container["name"]: container["image"] for container in containers} == {"main": "app:2", "side": "side:1"}


def test_server_side_apply_tracks_field_owners(ctl: Kubectl) -> None:
    applied = ctl("apply", "--server-side", "--field-manager=one", "-f", "-", stdin=config_map("c", a="1", b="1"))
    assert applied == "configmap/c serverside-applied\n"
    clash = config_map("c", a="2")
    refusal = ctl.fails("apply", "--server-side", "--field-manager=two", "-f", "-", stdin=clash)
    assert 'conflict with "one"' in refusal
    assert ".data.a" in refusal
    ctl("apply", "--server-side", "--field-manager=two", "--force-conflicts", "-f", "-", stdin=clash)
    ctl("apply", "--server-side", "--field-manager=one", "-f", "-", stdin=config_map("c"))

    assert ctl.get("configmap", "c")["data"] == {"a": "2"}
    managers = {
        entry["manager"] for entry in ctl.get("configmap", "c", "--show-managed-fields")["metadata"]["managedFields"]
    }
    assert "two" in managers


def test_a_client_side_apply_can_become_a_server_side_one(ctl: Kubectl) -> None:
    ctl("apply", "-f", "-", stdin=config_map("c", a="1", b="1"))
    refusal = ctl.fails("apply", "--server-side", "--field-manager=two", "-f", "-", stdin=config_map("c", b="3"))
    assert "conflict with" in refusal
    assert ".data.b" in refusal
    ctl("apply", "--server-side", "-f", "-", stdin=config_map("c", b="2"))
    assert ctl.get("configmap", "c")["data"] == {"b": "2"}


@pytest.mark.parametrize("how", [("apply",), ("apply", "--server-side"), ("create",)])
def test_a_dry_run_on_the_server_validates_and_changes_nothing(ctl: Kubectl, how: tuple[str, ...]) -> None:
    told = ctl(
        *how,
        "--dry-run=server",
        "-f",
        "-",
        stdin=pod("a"),
    )
    assert told.endswith("(server dry run)\n")
    assert ctl.names("pods") == []
    shown = yaml.safe_load(ctl(*how, "--dry-run=server", "-o", "yaml", "-f", "-", stdin=pod("a")))
    assert shown["spec"]["schedulerName"] == "default-scheduler"
    bad = pod("a")
    bad["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "-1"
    assert "must be greater than or equal to 0" in ctl.fails(*how, "--dry-run=server", "-f", "-", stdin=bad)


def test_diff_shows_what_apply_would_change(ctl: Kubectl) -> None:
    ctl("apply", "-f", "-", stdin=config_map("c", a="1"))
    done = ctl.run("diff", "-f", "-", stdin=config_map("c", a="2"))
    assert done.returncode == 1, done.stderr
    assert "-  a:" in done.stdout
    assert ctl.run("diff", "-f", "-", stdin=config_map("c", a="1")).returncode == 0


def test_unknown_fields_are_refused_or_warned_of(ctl: Kubectl) -> None:
    document = pod("a")
    document["spec"]["schedulrName"] = "x"
    assert 'unknown field "spec.schedulrName"' in ctl.fails("create", "-f", "-", stdin=document)
    done = ctl.run("create", "--validate=warn", "-f", "-", stdin=document)
    assert done.returncode == 0
    assert 'unknown field "spec.schedulrName"' in done.stderr
    ctl("delete", "pod", "a", "--now")
    ctl("create", "--validate=ignore", "-f", "-", stdin=document)


def test_create_in_its_many_forms(ctl: Kubectl) -> None:
    ctl("create", "deployment", "web", "--image=app:1", "--replicas=2")
    ctl("create", "job", "j", "--image=app:1")
    ctl("create", "cronjob", "cj", "--image=app:1", "--schedule=*/5 * * * *")
    ctl("create", "secret", "generic", "s", "--from-literal=k=v")
    ctl("create", "service", "clusterip", "svc", "--tcp=80:8080")
    ctl("create", "serviceaccount", "sa")
    ctl("create", "poddisruptionbudget", "pdb", "--selector=app=web", "--min-available=1")
    ctl("create", "quota", "q", "--hard=pods=10")
    ctl("run", "one", "--image=app:1", "--labels=app=one")

    assert ctl.get("deployment", "web")["spec"]["replicas"] == 2
    assert ctl.get("cronjob", "cj")["spec"]["schedule"] == "*/5 * * * *"
    assert ctl.get("secret", "s")["data"] == {"k": "dg=="}
    assert ctl.get("service", "svc")["spec"]["ports"][0]["targetPort"] == 8080
    assert ctl.get("pdb", "pdb")["spec"]["minAvailable"] == 1
    assert ctl.get("pod", "one")["metadata"]["labels"] == {"app": "one"}
    assert "already exists" in ctl.fails("create", "serviceaccount", "sa")
    named = ctl("create", "-f", "-", "-o", "name", stdin=pod("x") | {"metadata": {"generateName": "made-"}})
    assert named.startswith("pod/made-")


def test_replace_needs_the_current_version(ctl: Kubectl) -> None:
    ctl("create", "-f", "-", stdin=config_map("c", a="1"))
    stale = ctl.get("configmap", "c")
    ctl("replace", "-f", "-", stdin={**stale, "data": {"a": "2"}})
    assert "the object has been modified" in ctl.fails("replace", "-f", "-", stdin={**stale, "data": {"a": "3"}})
    assert ctl.get("configmap", "c")["data"] == {"a": "2"}
    ctl("replace", "--force", "-f", "-", stdin=config_map("c", b="1"))
    assert ctl.get("configmap", "c")["metadata"]["uid"] != stale["metadata"]["uid"]


def test_edit_sends_what_the_editor_changed(ctl: Kubectl) -> None:
    ctl("create", "-f", "-", stdin=config_map("c", colour="blue"))
    assert ctl("edit", "configmap", "c", editor="sed -i s/blue/green/") == "configmap/c edited\n"
    assert ctl.get("configmap", "c")["data"] == {"colour": "green"}
    unchanged = ctl.run("edit", "configmap", "c", editor="true")
    assert (unchanged.returncode, unchanged.stdout) == (0, "")


PATCHES = {
    "merge": '{"metadata": {"labels": {"added": "1", "app": null}}, "data": {"a": "2"}}',
    "strategic": '{"metadata": {"labels": {"added": "1", "app": null}}, "data": {"a": "2"}}',
    "json": '[{"op": "test", "path": "/data/a", "value": "1"}, {"op": "replace", "path": "/data/a", "value": "2"},'
    ' {"op": "remove", "path": "/metadata/labels/app"}, {"op": "add", "path": "/metadata/labels/added", "value": "1"}]',
}


@pytest.mark.parametrize("kind", PATCHES)
def test_each_kind_of_patch(ctl: Kubectl, kind: str) -> None:
    document = config_map("c", a="1", b="1")
    document["metadata"]["labels"] = {"app": "x", "kept": "1"}
    ctl("create", "-f", "-", stdin=document)
    ctl("patch", "configmap", "c", f"--type={kind}", "-p", PATCHES[kind])

    patched = ctl.get("configmap", "c")
    assert patched["data"] == {"a": "2", "b": "1"}
    assert patched["metadata"]["labels"] == {"kept": "1", "added": "1"}


def test_a_merge_patch_replaces_lists_and_a_strategic_one_merges_them(ctl: Kubectl) -> None:
    patch = '{"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "side:1"}]}}}}'

    def containers() -> list[str]:
        return [c["name"] for c in ctl.get("deployment", "web")["spec"]["template"]["spec"]["containers"]]

    ctl("create", "-f", "-", stdin=deployment("web"))
    ctl("patch", "deployment", "web", "--type=strategic", "-p", patch)
    assert sorted(containers()) == ["main", "side"]
    ctl("patch", "deployment", "web", "--type=merge", "-p", patch)
    assert containers() == ["side"]


def test_a_failed_test_of_a_json_patch_changes_nothing(ctl: Kubectl) -> None:
    ctl("create", "-f", "-", stdin=config_map("c", a="1"))
    patch = '[{"op": "replace", "path": "/data/a", "value": "2"}, {"op": "test", "path": "/data/a", "value": "9"}]'
    ctl.fails("patch", "configmap", "c", "--type=json", "-p", patch)
    assert ctl.get("configmap", "c")["data"] == {"a": "1"}


def test_status_is_a_separate_subresource(ctl: Kubectl) -> None:
    ctl("create", "-f", "-", stdin=pod("a"))
    ctl("patch", "pod", "a", "-p", '{"status": {"message": "ignored"}}')
    assert "message" not in ctl.get("pod", "a")["status"]
    ctl("patch", "pod", "a", "--subresource=status", "-p", '{"status": {"message": "kept"}}')
    assert ctl.get("pod", "a")["status"]["message"] == "kept"


@pytest.mark.parametrize(("command", "field"), [("label", "labels"), ("annotate", "annotations")])
def test_labels_and_annotations(ctl: Kubectl, command: str, field: str) -> None:
    for name in ("c", "d"):
        ctl("create", "-f", "-", stdin=config_map(name))
    ctl(command, "configmaps", "c", "d", "example.com/tier=front")
    assert "--overwrite is false" in ctl.fails(command, "configmap", "c", "example.com/tier=back")
    ctl(command, "configmap", "c", "example.com/tier=back", "--overwrite")
    ctl(command, "configmap", "d", "example.com/tier-")

    assert ctl.get("configmap", "c")["metadata"][field] == {"example.com/tier": "back"}
    assert field not in ctl.get("configmap", "d")["metadata"]


def test_a_bad_label_is_refused_by_name(ctl: Kubectl) -> None:
    ctl("create", "-f", "-", stdin=config_map("c"))
    assert "example" in ctl.fails("label", "configmap", "c", "example=not valid")


def test_delete_waits_for_the_grace_of_a_pod(ctl: Kubectl, node: str) -> None:
    ctl("create", "-f", "-", stdin=pod("a", on=node))
    ctl("wait", "--for=condition=Ready", "pod/a", "--timeout=60s")
    assert ctl("delete", "pod", "a", "--grace-period=1").startswith('pod "a" deleted')
    assert ctl.names("pods") == []


def test_delete_without_waiting_leaves_it_terminating(ctl: Kubectl) -> None:
    """A finalizer keeps it visible on any server."""
    document = pod("a")
    document["metadata"]["finalizers"] = ["example.com/hold"]
    ctl("create", "-f", "-", stdin=document)
    ctl("delete", "pod", "a", "--wait=false")
    assert "deletionTimestamp" in ctl.get("pod", "a")["metadata"]
    ctl("patch", "pod", "a", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    ctl("wait", "--for=delete", "pod/a", "--timeout=60s")


def test_delete_by_force_selector_and_file(ctl: Kubectl, tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        ctl("create", "-f", "-", stdin=pod(name, tier="x" if name in "ab" else "y"))
    ctl("delete", "pods", "-l", "tier=x", "--force", "--grace-period=0")
    assert ctl.names("pods") == ["pod/c", "pod/d"]
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(pod("c")))
    ctl("delete", "-f", str(path), "--now")
    ctl("delete", "pods", "--all", "--now")
    assert ctl.names("pods") == []
    assert "not found" in ctl.fails("delete", "pod", "a")
    assert ctl("delete", "pod", "a", "--ignore-not-found") == ""


@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_deleting_an_owner_deletes_what_it_owns(ctl: Kubectl, cascade: str) -> None:
    ctl("create", "-f", "-", stdin=deployment("web"))
    ctl("wait", "--for=create", "pod", "-l", "app=web", "--timeout=60s")
    ctl("delete", "deployment", "web", f"--cascade={cascade}")
    ctl("wait", "--for=delete", "rs,pods", "-l", "app=web", "--timeout=60s")
    assert ctl.names("deployments,replicasets,pods") == []


def test_orphaned_object_outlives_its_owner(ctl: Kubectl) -> None:
    ctl("create", "-f", "-", stdin=deployment("web"))
    ctl("wait", "--for=create", "rs", "-l", "app=web", "--timeout=60s")
    ctl("delete", "deployment", "web", "--cascade=orphan")
    [replica_set] = ctl.get("replicasets")["items"]
    assert "ownerReferences" not in replica_set["metadata"]


def test_namespace_deletion_deletes_its_objects(ctl: Kubectl) -> None:
    other = f"{ctl.namespace}-gone"
    ctl("create", "namespace", other)
    ctl("create", "configmap", "c", "-n", other)
    ctl("delete", "namespace", other, "--timeout=60s")
    assert "not found" in ctl.fails("get", "namespace", other)


def crd(group: str) -> Document:
    properties: Document = {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1},
                "colour": {"type": "string", "default": "blue"},
                "tags": {"type": "array", "maxItems": 1, "items": {"type": "string"}},
            },
        },
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wg"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
                    "subresources": {"status": {}},
                    "selectableFields": [{"jsonPath": ".spec.size"}],
                    "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
                }
            ],
        },
    }


def test_a_custom_kind_from_definition_to_removal(ctl: Kubectl) -> None:
    group = f"g{ctl.namespace[-8:]}.example.com"
    widget = {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 3}}
    kind = f"widgets.{group}"
    ctl("apply", "-f", "-", stdin=crd(group))
    try:
        ctl("wait", "--for=condition=Established", f"crd/{kind}", "--timeout=60s")
        assert ctl("apply", "-f", "-", stdin=widget) == f"widget.{group}/w created\n"
        assert ctl("apply", "-f", "-", stdin=widget) == f"widget.{group}/w unchanged\n"
        stored = ctl.get(kind, "w")
        assert stored["spec"] == {"size": 3, "colour": "blue"}
        assert "status" not in stored
        assert ctl.names(kind, "--field-selector", "spec.size=3") == [f"widget.{group}/w"]
        assert ctl.names(kind, "--field-selector", "spec.size=4") == []
        assert "field label not supported" in ctl.fails("get", kind, "--field-selector", "spec.colour=blue")
        assert ctl("get", kind).split()[:2] == ["NAME", "SIZE"]
        assert ctl.names(kind) == [f"widget.{group}/w"]
        ctl("patch", kind, "w", "--type=merge", "-p", '{"spec": {"size": 4}}')
        ctl("label", kind, "w", "a=b")
        ctl("edit", kind, "w", editor="sed -i s/blue/red/")
        assert ctl.get(kind, "w")["spec"] == {"size": 4, "colour": "red"}
        assert "size" in ctl("explain", f"{kind}.spec")
        bad = {**widget, "metadata": {"name": "bad"}, "spec": {"size": 0}}
        assert "should be greater than or equal to 1" in ctl.fails("apply", "-f", "-", stdin=bad)
        bad["spec"] = {"size": 1, "tags": ["a", "b"]}
        assert "spec.tags: Too many: 2: must have at most 1 item" in ctl.fails("apply", "-f", "-", stdin=bad)
        assert 'unknown field "spec.sise"' in ctl.fails(
            "create", "-f", "-", stdin={**widget, "metadata": {"name": "x"}, "spec": {"size": 1, "sise": 2}}
        )
        ctl("delete", kind, "w")
        assert ctl.names(kind) == []
    finally:
        ctl("delete", "crd", kind)
    assert "the server doesn't have a resource type" in ctl.fails("get", kind)
