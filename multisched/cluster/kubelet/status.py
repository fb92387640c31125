"""The statuses that fake kubelets write: bodies of strategic merge patches for pods and nodes.

Pure functions. Called only by Kubelets.
"""

from __future__ import annotations

from collections.abc import Sequence

from multisched.cluster.client.object_client import Document
from multisched.cluster.kubelet.admission import Container, KubeletPod, Refusal
from multisched.cluster.kubelet.stages import Next

KUBELET_VERSION = "v1.36.3"
_DEFAULT_CAPACITY = {"cpu": "1000", "memory": "1Ti", "pods": "1000000", "ephemeral-storage": "10Ti"}
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")


def rejected_status(pod: KubeletPod, refusal: Refusal, now: str) -> Document:
    """Returns the status of a pod that the kubelet rejected."""
    return _patch(pod, {"phase": "Failed", "reason": refusal.reason, "message": refusal.message, "startTime": now})


def provider_failed_status(pod: KubeletPod, message: str) -> Document:
    """Returns the status of a pod for which the provider created no sandbox (virtual-kubelet, node/pod.go, handleProviderError)."""
    phase = "Failed" if pod.spec.restartPolicy == "Never" else "Pending"
    return _patch(pod, {"phase": phase, "reason": "ProviderFailed", "message": message})


def played_status(pod: KubeletPod, action: Next, *, now: str, host_ip: str, pod_ip: str) -> Document:
    """Returns the status of a pod after a stage that sets a phase or readiness."""
    if action.phase == "Running":
        return _patch(pod, _running(pod, action, now, host_ip=host_ip, pod_ip=pod_ip))
    if action.phase is not None:
        return _patch(pod, _ended(pod, action, now))
    ready = bool(action.ready)
    started = pod.status.startTime or now
    return _patch(
        pod,
        {
            "conditions": _readiness(ready, action.reason, now),
            "containerStatuses": [_container(c, _running_state(started), ready=ready) for c in pod.spec.containers],
        },
    )


def _patch(pod: KubeletPod, status: Document) -> Document:
    """Builds a patch. It contains the uid, so that the server rejects it (409) if another pod has the name now."""
    return {"metadata": {"uid": pod.metadata.uid}, "status": status}


def _running(pod: KubeletPod, action: Next, now: str, *, host_ip: str, pod_ip: str) -> Document:
    ready = action.ready is not False
    status: Document = {
        "phase": "Running",
        "conditions": [
            _condition("PodReadyToStartContainers", True, "", now),
            _condition("Initialized", True, "", now),
            *_readiness(ready, action.reason, now),
        ],
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "podIP": pod_ip,
        "podIPs": [{"ip": pod_ip}],
        "startTime": pod.status.startTime or now,
        "containerStatuses": [_container(c, _running_state(now), ready=ready) for c in pod.spec.containers],
    }
    if pod.status.reason:  # of an earlier failure to start
        status |= {"reason": None, "message": None}
    if pod.spec.initContainers:
        status["initContainerStatuses"] = [_init_container(c, now) for c in pod.spec.initContainers]
    return status


def _ended(pod: KubeletPod, action: Next, now: str) -> Document:
    succeeded = action.phase == "Succeeded"
    started = pod.status.startTime or now
    status: Document = {"phase": action.phase, "startTime": started}
    if action.phase == "Failed" and action.exitCode is None:
        status |= {"reason": action.reason, "message": action.message}
    exit_code = action.exitCode if action.exitCode is not None else 0 if succeeded else 137
    state = {
        "terminated": {
            "exitCode": exit_code,
            "reason": action.reason or ("Completed" if succeeded else "Error"),
            "message": action.message,
            "startedAt": started,
            "finishedAt": now,
        }
    }
    reason = "PodCompleted" if succeeded else "PodFailed"
    status["conditions"] = [_condition("Initialized", True, reason if succeeded else "", now)]
    status["conditions"] += _readiness(False, reason, now)
    status["containerStatuses"] = [_container(c, state, ready=False) for c in pod.spec.containers]
    return status


def _readiness(ready: bool, reason: str, now: str) -> list[Document]:
    reason = "" if ready else reason or "ContainersNotReady"
    return [_condition("Ready", ready, reason, now), _condition("ContainersReady", ready, reason, now)]


def _condition(name: str, holds: bool, reason: str, now: str) -> Document:
    condition = {"type": name, "status": "True" if holds else "False", "lastTransitionTime": now}
    return condition | {"reason": reason} if reason else condition


def _running_state(started: str) -> Document:
    return {"running": {"startedAt": started}}


def _container(container: Container, state: Document, *, ready: bool) -> Document:
    return {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "ready": ready,
        "restartCount": 0,
        "started": "running" in state,
        "state": state,
    }


def _init_container(container: Container, now: str) -> Document:
    if container.restartPolicy == "Always":
        return _container(container, _running_state(now), ready=True)
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
    return _container(container, {"terminated": ended}, ready=True)


def node_status(
    *, name: str, address: str, ready: bool, reason: str, message: str, now: str, transition: str, allocatable: bool
) -> Document:
    """Returns the patch of a node's heartbeat. If `allocatable` is False, the node has none yet, and the patch sets a large default."""
    status: Document = {
        "conditions": [
            {
                "type": "Ready",
                "status": "True" if ready else "False",
                "reason": reason or ("KubeletReady" if ready else "KubeletNotReady"),
                "message": message or ("kubelet is posting ready status" if ready else "the kubelet is not ready"),
                "lastHeartbeatTime": now,
                "lastTransitionTime": transition,
            },
            *_pressure_conditions(now, transition),
        ],
        "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
        "nodeInfo": node_info(name),
        "phase": "Running",
    }
    if not allocatable:
        status |= {"capacity": _DEFAULT_CAPACITY, "allocatable": _DEFAULT_CAPACITY}
    return {"status": status}


def _pressure_conditions(now: str, transition: str, names: Sequence[str] = _PRESSURES) -> list[Document]:
    return [
        {
            "type": name,
            "status": "False",
            "reason": f"KubeletHasNo{name}",
            "message": f"kubelet has no {name}",
            "lastHeartbeatTime": now,
            "lastTransitionTime": transition,
        }
        for name in names
    ]


def node_info(name: str) -> Document:
    """Returns the node's software versions, as in `kubectl get nodes -o wide`."""
    return {
        "architecture": "amd64",
        "operatingSystem": "linux",
        "osImage": "multisched fake node",
        "kernelVersion": "6.12.0",
        "containerRuntimeVersion": "fake://1.0",
        "kubeletVersion": KUBELET_VERSION,
        "kubeProxyVersion": "",
        "machineID": name,
        "systemUUID": name,
        "bootID": name,
    }
