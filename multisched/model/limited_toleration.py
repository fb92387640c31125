"""Tolerations that a domain's policy adds to some of its pods only: to those that need what the taint keeps for them."""

from __future__ import annotations

import msgspec

from multisched.model.objects import Pod
from multisched.model.selectors import LabelSelector, Toleration


class PodRule(msgspec.Struct, frozen=True, gc=False):
    """Pods to which any of these applies."""

    requests: tuple[str, ...] = ()
    """They request some of one of these resources."""
    annotations: tuple[str, ...] = ()
    """They have one of these annotations, whatever it says."""
    selector: LabelSelector | None = None
    """Their labels match."""

    def selects(self, pod: Pod) -> bool:
        return (
            any(pod.spec.requests.get(resource, 0) > 0 for resource in self.requests)
            or any(key in pod.annotations for key in self.annotations)
            or (self.selector is not None and self.selector.matches(pod.labels))
        )


class LimitedToleration(Toleration, frozen=True, gc=False):
    """A toleration that only these pods are given."""

    pods: PodRule = PodRule()


def tolerations_for(pod: Pod, added: tuple[Toleration, ...]) -> tuple[Toleration, ...]:
    """Those of a policy that this pod is given."""
    return tuple(t for t in added if not isinstance(t, LimitedToleration) or t.pods.selects(pod))
