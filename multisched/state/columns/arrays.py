"""Arrays over all rows of the table: growing them, and returning read-only views."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

A = TypeVar("A", bound=NDArray[Any])


def frozen(array: A) -> A:
    """Returns a read-only view."""
    view = array.view()
    view.flags.writeable = False
    return view


def grown(array: A, capacity: int) -> A:
    """Returns a copy with `capacity` rows, new ones zero. Rows are the last axis."""
    grown = np.zeros((*array.shape[:-1], capacity), array.dtype)
    grown[..., : array.shape[-1]] = array
    return cast(A, grown)
