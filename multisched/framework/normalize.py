"""The normalization that most plugins share."""

from __future__ import annotations

import numpy as np

from multisched.framework.node_view import Scores

MAX_SCORE = 100


class ByLargest:
    """Scores in proportion to the largest raw score, or, reversed, MAX_SCORE minus that.

    Source: kube-scheduler pkg/scheduler/framework/plugins/helper/normalize_score.go. As a plugin's `normalizer`
    attribute it replaces NormalizeScore: while the largest raw score is unchanged, the class cache renews only changed
    rows.
    """

    def __init__(self, *, reverse: bool = False) -> None:
        self.reverse = reverse

    def apply(self, raw: Scores, largest: int) -> Scores:
        """Returns int64[rows] in 0..MAX_SCORE, given the largest raw score over all feasible rows."""
        if largest == 0:
            return np.full(len(raw), MAX_SCORE if self.reverse else 0, np.int64)
        scaled: Scores = raw * MAX_SCORE
        scaled //= largest
        return np.subtract(MAX_SCORE, scaled, out=scaled) if self.reverse else scaled
