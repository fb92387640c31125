"""Arrays over all rows of the table: how they grow, and how they are handed out."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

A = TypeVar("A", bound=NDArray[Any])


def frozen(array: A) -> A:
    """A view that cannot be written."""
    view = array.view()
    view.flags.writeable = False
    return view


def grown(array: A, capacity: int) -> A:
    """A copy with so many rows, the new ones zero. Rows are the last axis."""
    grown = np.zeros((*array.shape[:-1], capacity), array.dtype)
    grown[..., : array.shape[-1]] = array
    return cast(A, grown)
