"""Which label sets matter to some filter of one class of pods."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final

import numpy as np

from multisched.framework.node_view import Bools
from multisched.framework.preemption import LabelSet
from multisched.framework.sensitivity import PodSensitivity

LABEL_SETS_AT_ONCE: Final = 512
"""Label sets that are compared in one part: a few milliseconds with ten affinity terms."""


class LabelSetMatches:
    """Caches the result for each label set. The list of label sets only grows, or is replaced by another list."""

    def __init__(self) -> None:
        self._matters: Bools = np.zeros(0, np.bool_)
        self._mark: Hashable = None
        self._label_sets: Sequence[LabelSet] = ()

    def of(
        self, sensitivities: Sequence[PodSensitivity], label_sets: Sequence[LabelSet], pause: Callable[[], None]
    ) -> Bools:
        """Returns bool[label sets]: whether pods with these labels matter to some plugin that depends on labels.

        `pause`: called before each part; if it raises, the parts before are kept.
        """
        mark = tuple(sensitivity.mark for sensitivity in sensitivities)
        if mark != self._mark or label_sets is not self._label_sets:
            self._mark, self._label_sets, self._matters = mark, label_sets, self._matters[:0]
        while (known := len(self._matters)) < len(label_sets):
            pause()
            part = label_sets[known : known + LABEL_SETS_AT_ONCE]
            more = [any(sensitivity.matters(one.one) for sensitivity in sensitivities) for one in part]
            self._matters = np.concatenate((self._matters, np.array(more, np.bool_)))
        return self._matters
