"""What a plugin says so that its answers can be kept: what they depend on, and whom and which rows they are the same for."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, Protocol, runtime_checkable

from multisched.framework.node_view import Rows
from multisched.framework.points import CycleView, Plugin
from multisched.model.objects import Pod


@runtime_checkable
class SignPlugin(Plugin, Protocol):
    """What Filter and Score of this plugin read of a pod, beyond what always counts.

    Namespace and priority always count. Labels, annotations, owner and nominated node count only where a plugin puts
    them into its fragment. Pods of a thousand Jobs differ in their labels and in nothing that places them. Pods with
    equal signatures get equal codes and raw scores. A Filter or Score plugin without `sign` makes each pod a class of
    its own. One that reads nothing of a pod but its spec says so by `Traits.signs_spec_only`.
    """

    def sign(self, pod: Pod) -> Hashable | None:
        """A hashable fragment; None: this pod cannot be signed."""
        ...


class SplitCacheKey(NamedTuple):
    """What a CacheKeyPlugin's answers depend on, apart for both sides. None: it has nothing to say there of such pods now.

    A class is begun anew when one side falls silent, or speaks.
    """

    filters: Hashable | None
    """For PreFilter, which says Skip where this is None, and Filter."""
    scores: Hashable | None
    """The same for PreScore and Score."""


@runtime_checkable
class CacheKeyPlugin(Plugin, Protocol):
    """A plugin whose answers depend on more than rows and nodes: counts of pods, objects, a ledger.

    It depends on `Dependency.CACHE_KEY` or `ROW_AND_CACHE_KEY`, signs its pods, and names by `cache_key` what the rest
    depends on. `cache_key` must be cheap: every attempt asks it about a pod of each class the plugin speaks about.
    While the key stays equal, its answers are kept. When the key moved, PreFilter, Filter, PreScore and Score are asked
    again, in that order, about all rows.

    PreFilter's state stays in the class's CycleState from one attempt to the next. So a plugin may update what it wrote
    instead of making it anew. It is always asked about the pod at hand, whose signature is the class's. A plugin that
    has `Traits.reads_feasible` has PreScore and Score asked again also when other rows became feasible, and Score about
    feasible rows only.
    """

    def cache_key(self, cycle: CycleView, pod: Pod) -> Hashable | None:
        """Equal keys: no reason for other answers. None: it has nothing to say of pods with this signature, now or ever.

        After None no point of Filter or Score is called for the class, which therefore costs nothing. With
        `SplitCacheKey` only the side whose key moved is asked again.
        """
        ...


@runtime_checkable
class MovedRowsPlugin(Plugin, Protocol):
    """A CacheKeyPlugin on `Dependency.CACHE_KEY` that can tell which rows a moved key concerns: Filter is asked about those alone."""

    def moved_rows(self, cycle: CycleView, pod: Pod) -> Rows | None:
        """Rows of the table, ascending: all whose code may be another than when this was asked last. None: any row's may, as
        always for a state in `cycle.state` about which it was not asked yet.

        Asked after PreFilter; Filter's codes of a class are renewed where it says.
        """
        ...


@runtime_checkable
class TopologyKeysPlugin(Plugin, Protocol):
    """A CacheKeyPlugin on `Dependency.CACHE_KEY` that goes by topology domains: it says the same of rows with the same labels.

    It is then asked about one row of each group in place of all. Its NormalizeScore, if it has one, sees one row of
    each group that has feasible rows. So it must go by which raw scores there are, not by how often; ByLargest will not
    do.
    """

    def topology_keys(self, cycle: CycleView, pod: Pod) -> tuple[str, ...] | None:
        """The keys of all node labels by which its codes and raw scores differ; None: they differ by more than labels.

        The same for all pods of a class, as long as the key is not None.
        """
        ...
