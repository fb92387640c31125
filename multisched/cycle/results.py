"""What an attempt yields, and what becomes of it."""

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
    """A request a plugin wants answered before the cycle goes on."""

    plugin: RemotePlugin
    request: object
    uid: str = ""
    """Of the member of a gang; empty for a pod alone."""

    @property
    def key(self) -> str:
        """Under which the answer is sent."""
        return f"{self.plugin.name}/{self.uid}" if self.uid else self.plugin.name


class Placed(msgspec.Struct, frozen=True):
    """The pod is assumed and reserved on a node; it may have to wait at Permit, then it is bound."""

    pod: Pod
    node: str
    annotations: Mapping[str, str]
    view: CycleView
    waits: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Permit plugin -> seconds it wants to wait at most."""
    relates: bool = False
    """Some filter goes by what stands on other nodes, too."""
    nominated_node: str = ""
    """The node that was promised to it until now; empty: none."""


class Unplaced(msgspec.Struct, frozen=True):
    """The pod was refused; nothing is held for it."""

    pod: Pod
    message: str
    rejectors: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()
    is_error: bool = False
    nominated_node: str | None = CLEARED
    """The node promised to it; empty: none, any more; None: as before."""
    preemption: Preemption | None = None
    """Whom the shell removes for it. Pods that are to start together have the same one."""
    condition_reason: str = ""
    """As `Status.condition_reason`, of the plugin that refused the pod."""

    @property
    def victims(self) -> tuple[Pod, ...]:
        return () if self.preemption is None else self.preemption.every_victim


class Conflicted(msgspec.Struct, frozen=True):
    """The pod had rows, but none of its candidates took it any more at commit."""

    pod: Pod
    refusal: str = ""
    """The node and what a ledger has against it, where no filter said so; empty where others had taken the rows."""
    rejector: str = ""
    """The plugin whose ledger about the cluster refuses the pod, wherever it goes; empty for any other refusal."""
    condition_reason: str = ""
    """As `Status.condition_reason`, of that ledger."""


class GangResult(msgspec.Struct, frozen=True):
    """What became of the members of a gang: all that had to stand do, or none does."""

    placed: tuple[Placed, ...]
    unplaced: tuple[Unplaced, ...]


class Pause(msgspec.Struct, frozen=True):
    """The step has lasted as long as one may: the caller lets the event loop run, then sends None.

    Before that it may close the attempt, which undoes everything.
    """

    placed: Sequence[Placed] = ()
    """Members that are assumed during the pause; everybody else sees them on their nodes. A view: copy to keep."""


NO_PAUSE: Mapping[str, object | PluginFailure] = {}
"""What is sent after a pause: nobody was asked."""

Result = Placed | Unplaced | Conflicted
GangAttempt = Generator[Sequence[RemoteRequest] | Pause, Mapping[str, object | PluginFailure], GangResult]
"""As an Attempt; what is sent is by `RemoteRequest.key`. May pause."""
Attempt = Generator[Sequence[RemoteRequest], Mapping[str, object | PluginFailure], Result]
"""Yields the requests that plugins want answered from outside, and is sent the answers by plugin."""
