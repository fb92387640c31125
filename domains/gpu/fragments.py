"""Fragments of nodes: the idle GPU that typical pods could not use there. Arithmetic over many states of nodes at once.

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023, section 4; the details that the paper leaves open are those of the authors' simulator.

For one node and one typical pod, all idle GPU is a fragment if the pod needs no GPU, does not accept the model, lacks CPU, or
finds too few cards with enough left; otherwise what is left on cards with too little. Memory is ignored. The node's fragments are
the mean over the typical pods by their shares.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from domains.gpu.typical_pods import Typical
from multisched.framework.node_view import Float64, Int64, Rows


class Fragments:
    """The typical pods as arrays. Immutable.

    Of a typical pod that can run, the cards with enough left are no fragments. So with w(g) the share of the pods of kind g that
    accept the model and have the CPU, fragments = idle - sum over g of w(g) * (left of cards with enough for g, if they are enough).
    """

    def __init__(self, typical: Typical, models: Sequence[str]) -> None:
        """`models`: number of a model in the arrays of `of` -> its name."""
        pods = [one for one in typical if one.shape.count]
        kinds = sorted({(one.shape.milli, one.shape.count) for one in pods})
        levels = sorted({one.shape.cpu_milli for one in pods})
        self._is_known = bool(typical)
        self._cpu_milli = np.array(levels, np.int64)
        amounts = sorted({milli for milli, _ in kinds})
        self._milli: NDArray[np.int32] = np.array(amounts, np.int32)[:, None, None]
        self._amount_of: Rows = np.array([amounts.index(milli) for milli, _ in kinds], np.intp)
        """Kind -> place of its amount in `_milli`."""
        self._several = [(at, amounts.index(milli), count) for at, (milli, count) in enumerate(kinds) if count > 1]
        """Kinds of more than one card: kind, place of its amount, and count."""
        self._shares: Float64 = np.zeros((len(models), len(levels) + 1, len(kinds)))
        """Share of the pods of each kind that accept the model and need at most the CPU of the level before."""
        for one in pods:
            accepted = [not one.shape.models or name in one.shape.models for name in models]
            level = levels.index(one.shape.cpu_milli) + 1
            self._shares[accepted, level:, kinds.index((one.shape.milli, one.shape.count))] += one.share

    def of(self, left: Int64, cpu_milli: Int64, model: Int64) -> Float64:
        """Returns float64[states]: fragments in thousandths of a card.

        `left`: int64[cards, states], thousandths left of each card, 0 for a missing one; `cpu_milli`: idle CPU; `model`: the
        number of the model of the cards. Without typical pods nothing is a fragment.
        """
        if not self._is_known:
            return np.zeros(len(cpu_milli))
        small = left.astype(np.int32)
        enough = small >= self._milli
        usable = np.add.reduce(np.where(enough, small, _NOTHING), axis=1).take(self._amount_of, axis=0)
        for kind, amount, count in self._several:  # of one card, nothing is usable if it is lacking
            usable[kind, np.add.reduce(enough[amount], axis=0, dtype=np.int32) < count] = 0
        shares = self._shares[model, self._cpu_milli.searchsorted(cpu_milli, "right")]
        found: Float64 = np.add.reduce(small, axis=0) - np.einsum("sk,ks->s", shares, usable)
        return found

    def by_card(self, left: Int64, cpu_milli: Int64, model: Int64) -> Float64:
        """Returns float64[cards, states]: the part of `of` that is on each card. For display: it computes more than `of`."""
        if not self._is_known:
            return np.zeros(left.shape)
        usable = (left >= self._milli).take(self._amount_of, axis=0)
        for kind, _, count in self._several:
            usable[kind] &= np.add.reduce(usable[kind], axis=0) >= count
        shares = self._shares[model, self._cpu_milli.searchsorted(cpu_milli, "right")]
        found: Float64 = left * (1 - np.einsum("sk,kcs->cs", shares, usable))
        return found


_NOTHING = np.int32(0)
