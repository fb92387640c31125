"""Requests for idle capacity, which other pods request and do not use: batch resources, or an annotation of a BestEffort pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from multisched.model.objects import CPU, MEMORY, Pod, QosClass
from multisched.model.quantity import QuantityError, parse_milli, parse_value

IDLE_REQUEST: Final = "multisched.io/idle-request"
"""Annotation of a BestEffort pod with its expected use, for instance "cpu=2" or "cpu=500m,memory=1Gi"."""
BATCH_RESOURCES: Final = {"kubernetes.io/batch-cpu": CPU, "kubernetes.io/batch-memory": MEMORY}
"""Koordinator's resources -> the resources that they mean; batch-cpu is in thousandths of cores."""
TEXT_MAX: Final = 200
NOTHING: Final[Mapping[str, int]] = {}


class IdleRequestError(ValueError):
    """The annotation cannot be parsed; the message has the reason."""


def idle_demand(pod: Pod) -> Mapping[str, int]:
    """Returns resource -> amount of idle capacity that the pod requests; empty if it requests none or its annotation is invalid."""
    spec = pod.spec
    found = {own: spec.requests[name] for name, own in BATCH_RESOURCES.items() if spec.requests.get(name)}
    if found:
        return found
    if IDLE_REQUEST not in pod.annotations or spec.qos is not QosClass.BEST_EFFORT:
        return NOTHING
    try:
        return read_idle_request(pod.annotations[IDLE_REQUEST])
    except IdleRequestError:
        return NOTHING


def read_idle_request(text: str) -> Mapping[str, int]:
    """Parses the annotation. Raises IdleRequestError."""
    if len(text) > TEXT_MAX:
        raise IdleRequestError(f"is longer than {TEXT_MAX} characters")
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, amount = part.strip().partition("=")
        if name not in (CPU, MEMORY) or name in found:
            raise IdleRequestError(f"{part.strip()[:63]!r} is not cpu=QUANTITY or memory=QUANTITY, each at most once")
        try:
            found[name] = parse_milli(amount) if name == CPU else parse_value(amount)
        except QuantityError as error:
            raise IdleRequestError(str(error)) from error
        if found[name] <= 0:
            raise IdleRequestError(f"{name} is {amount[:63]!r}; write more than 0")
    return found


def remark_on(pod: Pod) -> str:
    """Returns the error in the pod's annotation and the fix; empty if there is no error."""
    text = pod.annotations.get(IDLE_REQUEST)
    if text is None:
        return ""
    try:
        read_idle_request(text)
    except IdleRequestError as error:
        return f'annotation {IDLE_REQUEST} has no effect: {error}; write for instance "cpu=2"'
    if pod.spec.qos is not QosClass.BEST_EFFORT:
        return f"annotation {IDLE_REQUEST} has no effect: the pod has requests or limits; only BestEffort pods use idle capacity by it"
    return ""
