"""Tolerations that a domain's policy adds to some of its pods only: those for which the tainted nodes are reserved."""

from __future__ import annotations

import msgspec

from multisched.model.objects import Pod
from multisched.model.selectors import LabelSelector, Toleration


class PodRule(msgspec.Struct, frozen=True, gc=False):
    """Selects pods to which any of these conditions applies."""

    requests: tuple[str, ...] = ()
    """The pod requests one of these resources."""
    annotations: tuple[str, ...] = ()
    """The pod has one of these annotations, with any value."""
    selector: LabelSelector | None = None
    """The pod's labels match."""

    def selects(self, pod: Pod) -> bool:
        requests = pod.spec.requests
        return (
            any(requests[resource] > 0 for resource in self.requests if resource in requests)
            or (bool(pod.annotations) and any(key in pod.annotations for key in self.annotations))
            or (self.selector is not None and self.selector.matches(pod.labels))
        )


class LimitedToleration(Toleration, frozen=True, gc=False):
    """A toleration that is added to the selected pods only."""

    pods: PodRule = PodRule()


def tolerations_for(pod: Pod, added: tuple[Toleration, ...]) -> tuple[Toleration, ...]:
    """Returns the tolerations of a policy that apply to this pod."""
    return tuple(t for t in added if not isinstance(t, LimitedToleration) or t.pods.selects(pod))
