"""The scheduling core of one policy without I/O: its cache, queue, cycles and plugins, driven pod by pod.

For workloads that need only decisions, but tens of thousands of them. There is no API server, event loop or bind request. An assumed
pod counts as bound. Decisions are those of the program, except that only one attempt is in progress at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from multisched.config.plugins import plugin_registry, resolve_profile
from multisched.cycle.results import Placed
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.context import PluginContext
from multisched.framework.node_view import NodeView
from multisched.framework.points import Plugin, QueuedPod
from multisched.framework.registry import build_profile
from multisched.framework.runner import Runner
from multisched.model.decode import Decoder
from multisched.model.objects import Pod
from multisched.queueing.pod_queue import PodQueue
from multisched.simulate.scenario import Policy
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.state.nominator import Nominator
from multisched.testing.quiet_observer import QuietObserver


class BareCore:
    """The core of the policy's domain, with all nodes. The same arguments and calls give the same decisions."""

    def __init__(self, policy: Policy, seed: int) -> None:
        """`seed`: of the random choice between nodes with equal scores. Raises PluginSetupError if a plugin cannot be built."""
        configuration = policy.configuration
        domain = next(one for one in configuration.domains if policy.scheduler_name in one.scheduler_names)
        self._cache = ClusterCache()
        rows = DomainRows(domain.name, lambda node: True)
        self._cache.add_domain(rows)
        cache, registry = self._cache, plugin_registry()
        self.context = context = PluginContext(
            domain.name,
            cache.nodes,
            WaitingPodTable(),
            cache.ledgers,
            cache.objects,
            gangs=cache.gangs,
            rows=lambda: rows.rows,
            scheduler_names=configuration.served,
            pending=self._pending,
        )
        plugins = build_profile(resolve_profile(domain, registry), registry, context)
        self._observer = QuietObserver()
        self._plugins: tuple[Plugin, ...] = tuple(built.plugin for built in plugins.built)
        self._cycle = SchedulingCycle(plugins, Runner(self._observer, lambda: 0.0), cache, rows, Nominator(), seed=seed)
        self._queue = PodQueue(
            plugins.queue_sort,
            plugins.pre_enqueue,
            self._plugins,
            on_error=self._observer.plugin_failed,
            gangs=cache.gangs,
        )
        cache.gangs.on_change = self._queue.gang_changed
        self._decoder = Decoder()
        self._decoder.keep(cache.ledgers.read_annotations)

    def add_node(self, document: Mapping[str, Any]) -> None:
        self._cache.set_node(self._decoder.node(orjson.dumps(document)))

    def read_pod(self, document: Mapping[str, Any]) -> Pod:
        """Decodes a pod. Pods with equal specs share one spec object, as in the program."""
        return self._decoder.pod(orjson.dumps(document))

    def place(self, pod: Pod) -> str:
        """Queues the pod and makes one attempt. Assumes the pod and returns its node; empty if no node is feasible.

        In both cases the pod leaves the queue. Raises AssertionError if the pod must wait for a gate, a response or a gang.
        """
        self._queue.add(pod, 0.0)
        queued = self._queue.pop(0.0)
        assert isinstance(queued, QueuedPod), f"pod {pod.key} is not tried alone"
        try:
            next(self._cycle.attempt(queued))
        except StopIteration as ended:
            result = ended.value
        else:
            raise AssertionError(f"the attempt of pod {pod.key} waits for a response")
        self._queue.done(pod.uid)
        return result.node if isinstance(result, Placed) else ""

    def show(self, pod: Pod) -> None:
        """Places the pod on `pod.node` without a decision, or updates it, as an event of the watch does."""
        self._cache.place(pod)

    def remove(self, pod: Pod) -> None:
        """Removes a placed pod, as if it had ended and been deleted."""
        self._cache.remove(pod.uid)

    @property
    def nodes(self) -> NodeView:
        """The nodes with the pods placed so far."""
        return self._cache.nodes

    def plugins(self) -> tuple[Plugin, ...]:
        return self._plugins

    def failures(self) -> tuple[str, ...]:
        """Returns the failures of plugins so far, each once."""
        return tuple(dict.fromkeys(self._observer.failures))

    def _pending(self) -> Iterator[Pod]:
        return (entry.pod for entry in self._queue.entries())
