"""Signatures of pods: equal for pods that every plugin treats the same, and thus the key of their class.

Owns the numbers given to specs, and counts the pods that cannot be signed. Called by `ClassCache` only.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from multisched.framework.caching import SignPlugin
from multisched.framework.points import Plugin
from multisched.framework.registry import implementing
from multisched.framework.runner import Runner
from multisched.framework.traits import traits_of
from multisched.model.objects import Pod, PodSpec

SPECS_MAX = 65_536
"""Specs whose number is cached, by identity."""
SPECS_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of the cached specs; their pods may be deleted already."""


class Signatures:
    """Pod -> signature."""

    __slots__ = (
        "_alike",
        "_bytes",
        "_given",
        "_numbers",
        "_pod_signers",
        "_runner",
        "_spec_signers",
        "_specs",
        "_without",
        "unsigned",
    )

    def __init__(self, plugins: Collection[Plugin], runner: Runner) -> None:
        """`plugins`: the plugins whose results a class keeps."""
        self._runner = runner
        signers = implementing(plugins, SignPlugin)
        self._spec_signers = [p for p in signers if traits_of(p).signs_spec_only]
        pod_signers = [p for p in signers if not traits_of(p).signs_spec_only]
        self._pod_signers = sorted(pod_signers, key=lambda p: not traits_of(p).signs_alike)
        self._alike = sum(traits_of(p).signs_alike for p in pod_signers)
        """Number of plugins with `Traits.signs_alike`; they are the first of `_pod_signers`."""
        signed = frozenset(p.name for p in signers)
        self._without = [p.name for p in plugins if p.name not in signed]
        """Plugins that sign nothing. With any of them, each pod gets a class of its own."""
        self.unsigned: dict[str, int] = dict.fromkeys(self._without, 0)
        """Plugin -> pods that it did not sign, each of which got a class of its own."""
        self._specs: dict[int, tuple[int, PodSpec]] = {}
        self._numbers: dict[Hashable, int] = {}
        self._given = 0
        self._bytes = 0

    def of(self, pod: Pod) -> Hashable | None:
        """Returns the pod's signature; None for a pod in a class of its own.

        Valid at this moment only. It includes services, namespaces and affinity terms of placed pods, so that the same pod may
        get another class in its next attempt.
        """
        if self._without:
            self.unsigned[self._without[0]] += 1
            return None
        number = self._number(pod)
        if number is None:
            return None
        fragments = self._fragments(self._pod_signers, pod)
        return None if fragments is None else (number, pod.namespace, *fragments)

    def is_of(self, signature: Hashable, pod: Pod, *, is_alike: bool) -> bool:
        """Reports whether the pod's signature equals `signature`.

        `is_alike`: a pod that is alike (`are_alike`) got this signature in this step, and since then only pods with that spec were placed.
        """
        if not is_alike or pod.spec.pod_affinity is not None:
            return self.of(pod) == signature
        assert isinstance(signature, tuple), "the known pod is signed"
        return self._fragments(self._pod_signers[self._alike :], pod) == [*signature[2 + self._alike :]]

    def forget_all(self) -> None:
        """Drops the cached specs. No number is ever reused."""
        self._specs.clear()
        self._numbers.clear()
        self._bytes = 0

    def _number(self, pod: Pod) -> int | None:
        """Returns one number per set of specs that the plugins which read only the spec treat the same; None if unsigned.

        Hashing a spec's signature in each decision costs too much; all pods of a workload share one spec object.
        """
        known = self._specs.get(id(pod.spec))
        if known is not None:
            return known[0]
        fragments = self._fragments(self._spec_signers, pod)
        if fragments is None:
            return None
        signature = (pod.spec.priority, *fragments)
        if len(self._specs) >= SPECS_MAX or self._bytes > SPECS_BYTES_MAX:
            self.forget_all()
        self._bytes += pod.spec.size_bytes
        number = self._numbers.get(signature)
        if number is None:
            # Never reused: classes with numbers of dropped specs stay cached until they are the least recently used.
            self._given += 1
            number = self._numbers[signature] = self._given
        self._specs[id(pod.spec)] = (number, pod.spec)  # keeps the spec alive, so that its id stays unique
        return number

    def _fragments(self, plugins: Sequence[SignPlugin], pod: Pod) -> list[Hashable] | None:
        found = self._runner.sign(plugins, pod)
        if None in found:
            name = plugins[found.index(None)].name
            self.unsigned[name] = self.unsigned.get(name, 0) + 1
            return None
        return found
