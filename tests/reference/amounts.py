"""Quantities as exact fractions, and what a pod asks for.

Source: k8s.io/component-helpers 0.36 resource/helpers.go, pkg/scheduler/framework/types.go.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

Json = Mapping[str, Any]
Amounts = dict[str, Fraction]

_NUMBER = re.compile(r"^([+-]?[0-9.]+)(.*)$")
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}

NON_ZERO = {"cpu": Fraction(1, 10), "memory": Fraction(200 * 1024 * 1024)}
"""What scoring counts for a container that asks for no CPU or memory."""


def quantity(text: str | int | float) -> Fraction:
    found = _NUMBER.match(str(text))
    assert found is not None, text
    number, suffix = Fraction(found[1]), found[2]
    if suffix in _BINARY:
        return number * Fraction(1024) ** _BINARY[suffix]
    if suffix in _DECIMAL:
        return number * Fraction(10) ** _DECIMAL[suffix]
    return number * Fraction(10) ** int(suffix[1:])


def whole(resource: str, amount: Fraction) -> int:
    """Milli-CPU for CPU, units for all else, rounded up."""
    return math.ceil(amount * 1000) if resource == "cpu" else math.ceil(amount)


def allocatable(node: Json) -> dict[str, int]:
    amounts = node.get("status", {}).get("allocatable") or {}
    return {name: whole(name, quantity(text)) for name, text in amounts.items()}


def pod_requests(pod: Json) -> dict[str, int]:
    """What a pod takes of its node."""
    return _requests(pod, {}, with_status=True, with_pod_level=True)


def asked_requests(pod: Json) -> dict[str, int]:
    """What a pending pod asks of a node: no status counts."""
    return _requests(pod, {}, with_status=False, with_pod_level=True)


def placed_scoring_requests(pod: Json) -> dict[str, int]:
    """What scoring counts of a placed pod. With requests of its own at pod level only what it lacks altogether is set."""
    lacking = dict(NON_ZERO)
    if pod_level_requests(pod):
        for name in pod_requests(pod):
            lacking.pop(name, None)
    return _requests(pod, lacking, with_status=True, with_pod_level=True)


def asked_scoring_requests(pod: Json) -> dict[str, int]:
    """What NodeResourcesFit's score counts of the pending pod: its containers alone, as upstream."""
    return _requests(pod, NON_ZERO, with_status=False, with_pod_level=False)


def pod_level_requests(pod: Json) -> Amounts:
    found = _amounts((pod["spec"].get("resources") or {}).get("requests"))
    return {n: amount for n, amount in found.items() if n in ("cpu", "memory") or n.startswith("hugepages-")}


def _requests(pod: Json, lacking: Amounts, *, with_status: bool, with_pod_level: bool) -> dict[str, int]:
    """The larger of the containers together and the greediest moment of starting, and overhead.

    `lacking`: what a container counts with that asks for none of it.
    """
    spec = pod["spec"]
    statuses = _statuses(pod) if with_status else {}
    is_infeasible = _is_infeasible(pod)
    running: Amounts = {}
    for container in spec.get("containers") or ():
        _add(running, _container(container, statuses, is_infeasible, lacking))
    sidecars: Amounts = {}
    starting: Amounts = {}
    for container in spec.get("initContainers") or ():
        is_sidecar = container.get("restartPolicy") == "Always"
        asked = _container(container, statuses if is_sidecar else {}, is_infeasible, lacking)
        if is_sidecar:
            _add(running, asked)
            _add(sidecars, asked)
            moment = dict(sidecars)
        else:
            moment = dict(asked)
            _add(moment, sidecars)
        _max(starting, moment)
    _max(running, starting)
    if with_pod_level:
        running |= pod_level_requests(pod)
    _add(running, _amounts(spec.get("overhead")))
    return {name: whole(name, amount) for name, amount in running.items()}


def _statuses(pod: Json) -> dict[str, Json]:
    status = pod.get("status") or {}
    found = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    return {one["name"]: one for one in found}


def _is_infeasible(pod: Json) -> bool:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodResizePending":
            return bool(condition.get("reason") == "Infeasible")
    return False


def _container(container: Json, statuses: Mapping[str, Json], is_infeasible: bool, lacking: Amounts) -> Amounts:
    """A container that is being resized in place counts with the most of what it wants, has and was given."""
    asked = _amounts((container.get("resources") or {}).get("requests"))
    status = statuses.get(container["name"])
    if status is not None and status.get("resources") is not None:
        if is_infeasible:
            asked = {}
        _max(asked, _amounts(status["resources"].get("requests")))
        _max(asked, _amounts(status.get("allocatedResources")))
    return {**lacking, **asked}


def _amounts(texts: Json | None) -> Amounts:
    return {name: quantity(text) for name, text in (texts or {}).items()}


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Fraction(0)) + amount


def _max(total: Amounts, other: Amounts) -> None:
    for name, amount in other.items():
        total[name] = max(total[name], amount) if name in total else amount
