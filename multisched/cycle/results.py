"""The values that an attempt yields, and its results."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

import msgspec

from multisched.cycle.preemption.post_filter import CLEARED
from multisched.framework.points import CycleView
from multisched.framework.preemption import Preemption
from multisched.framework.remote import RemotePlugin
from multisched.framework.runner import PluginFailure
from multisched.model.objects import Pod


class RemoteRequest(msgspec.Struct, frozen=True):
    """A request that a plugin wants answered before the cycle continues."""

    plugin: RemotePlugin
    request: object
    uid: str = ""
    """The UID of the gang member that the request is about; empty for a single pod."""

    @property
    def key(self) -> str:
        """The key under which the response is sent."""
        return f"{self.plugin.name}/{self.uid}" if self.uid else self.plugin.name


class Placed(msgspec.Struct, frozen=True):
    """A pod that is assumed and reserved on a node. It may have to wait at Permit before it is bound."""

    pod: Pod
    node: str
    annotations: Mapping[str, str]
    view: CycleView
    waits: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Permit plugin -> the longest time, in seconds, that the pod may wait for it."""
    relates: bool = False
    """True if some filter also depends on pods on other nodes."""
    nominated_node: str = ""
    """The pod's nominated node before this attempt; empty if none."""


class Unplaced(msgspec.Struct, frozen=True):
    """A refused pod; nothing is held for it."""

    pod: Pod
    message: str
    rejectors: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()
    is_error: bool = False
    nominated_node: str | None = CLEARED
    """The new nominated node. Empty: the nomination is cleared; None: it stays as before."""
    preemption: Preemption | None = None
    """The preemption that the shell carries out for it. Members that must start together share one."""
    condition_reason: str = ""
    """`Status.condition_reason` of the plugin that refused the pod."""

    @property
    def victims(self) -> tuple[Pod, ...]:
        return () if self.preemption is None else self.preemption.every_victim


class Conflicted(msgspec.Struct, frozen=True):
    """A pod that had feasible rows but no longer fitted any candidate row at commit."""

    pod: Pod
    refusal: str = ""
    """The node and a ledger's reason, if a ledger refused the pod; empty if other pods took the rows."""
    rejector: str = ""
    """The plugin whose cluster-wide ledger refuses the pod on every node; empty for any other refusal."""
    condition_reason: str = ""
    """`Status.condition_reason` of that ledger."""


class GangResult(msgspec.Struct, frozen=True):
    """The result of a gang attempt: all members that must start are placed, or none is."""

    placed: tuple[Placed, ...]
    unplaced: tuple[Unplaced, ...]


class Pause(msgspec.Struct, frozen=True):
    """A step has used up its time: the caller lets the event loop run, then sends NO_PAUSE.

    The caller may close the attempt instead, which undoes everything.
    """

    placed: Sequence[Placed] = ()
    """Members assumed during the pause; other cycles see them on their nodes. A view: copy it to keep it."""


NO_PAUSE: Mapping[str, object | PluginFailure] = {}
"""The value that the caller sends after a pause: no responses."""

Result = Placed | Unplaced | Conflicted
GangAttempt = Generator[Sequence[RemoteRequest] | Pause, Mapping[str, object | PluginFailure], GangResult]
"""The same as Attempt, but responses are keyed by `RemoteRequest.key`, and it may pause."""
Attempt = Generator[Sequence[RemoteRequest] | Pause, Mapping[str, object | PluginFailure], Result]
"""Yields the remote requests of plugins, and is sent the responses by plugin. May pause while it looks for victims."""
