"""Declarations of plugins that make their answers cacheable: the dependencies of the answers, and the pods and rows that share them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, Protocol, runtime_checkable

from multisched.framework.node_view import Rows
from multisched.framework.points import CycleView, Plugin
from multisched.model.objects import Pod


@runtime_checkable
class SignPlugin(Plugin, Protocol):
    """Declares what Filter and Score of this plugin read of a pod, besides namespace and priority.

    Namespace and priority are always part of the signature. Labels, annotations, owner and nominated node are part of it
    only if a plugin puts them into its fragment: the pods of a thousand Jobs differ in labels that do not affect their
    placement. Pods with equal signatures get equal codes and raw scores. A Filter or Score plugin without `sign` makes
    each pod its own class. A plugin that reads only the pod's spec sets `Traits.signs_spec_only`.
    """

    def sign(self, pod: Pod) -> Hashable | None:
        """Returns a hashable fragment; None: this pod cannot be signed."""
        ...


class SplitCacheKey(NamedTuple):
    """Separate cache keys for Filter and Score. None: that side of the plugin has no effect on such pods now.

    A class is rebuilt when a side changes from None to a key or back.
    """

    filters: Hashable | None
    """For PreFilter, which returns Skip if this is None, and Filter."""
    scores: Hashable | None
    """For PreScore, which returns Skip if this is None, and Score."""
    is_by_row: bool = False
    """True if a pod that is placed can change Filter's code for its own row only."""


@runtime_checkable
class CacheKeyPlugin(Plugin, Protocol):
    """A plugin whose answers depend on more than rows and nodes: counts of pods, objects, a ledger.

    It declares `Dependency.CACHE_KEY` or `ROW_AND_CACHE_KEY`, signs its pods, and returns what else it depends on from
    `cache_key`. `cache_key` must be cheap: every attempt calls it for a pod of each class that the plugin acts on.
    Answers are kept while the key is unchanged. When the key changes, PreFilter, Filter, PreScore and Score run again, in
    that order, for all rows.

    PreFilter's state stays in the class's CycleState between attempts, so a plugin may update that state instead of
    rebuilding it. PreFilter is always called with the current pod, whose signature is that of the class. For a plugin with
    `Traits.reads_feasible`, PreScore and Score also run again when other rows become feasible, and Score gets feasible
    rows only.
    """

    def cache_key(self, cycle: CycleView, pod: Pod) -> Hashable | None:
        """Returns the cache key; equal keys mean equal answers. None: it never acts on pods with this signature.

        After None no Filter or Score point is called for the class. With `SplitCacheKey` only the side whose key
        changed runs again.
        """
        ...


@runtime_checkable
class MovedRowsPlugin(Plugin, Protocol):
    """A CacheKeyPlugin with `Dependency.CACHE_KEY` that knows which rows a changed key affects: Filter runs for those only."""

    def moved_rows(self, cycle: CycleView, pod: Pod) -> Rows | None:
        """Returns the table rows, ascending, whose codes may have changed since the last call. None: any row may have
        changed; always None at the first call for a state in `cycle.state`.

        Called after PreFilter; the class's Filter codes are renewed for the returned rows.
        """
        ...


@runtime_checkable
class TopologyKeysPlugin(Plugin, Protocol):
    """A CacheKeyPlugin with `Dependency.CACHE_KEY` that depends on topology domains: rows with equal labels get equal answers.

    It is evaluated on one row of each group of equal rows. Its NormalizeScore, if any, gets one row of each group with
    feasible rows, so it must depend on the set of raw scores, not on how often each occurs. `Traits.normalizer` is not applied.
    """

    def topology_keys(self, cycle: CycleView, pod: Pod) -> tuple[str, ...] | None:
        """Returns the keys of all node labels that its codes and raw scores depend on; None: they depend on more than labels.

        The same for all pods of a class, as long as the cache key is not None.
        """
        ...
