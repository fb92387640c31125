"""Reviews of objects before they are stored: the answers to AdmissionReviews of `admission.k8s.io/v1`.

The composition root implements AdmissionSource; the server asks it and knows no kind of object.
"""

from __future__ import annotations

from typing import Final, Protocol

VALIDATE_QUOTAS_PATH: Final = "/validate/quotas"
REVIEW_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of a review: the object and what it was before, 1.5 MiB each at most in etcd, and more as JSON."""
REVIEWS_MAX: Final = 2
"""At the same time; more are answered 429."""


class NotReviewedError(Exception):
    """The body is no review that can be answered; the message says why."""


class AdmissionSource(Protocol):
    """Reviews quotas off the loop.

    Border: the composition root has it, above `observe`.
    """

    async def review(self, body: bytes) -> bytes:
        """The AdmissionReview with its response. Raises NotReviewedError."""
        ...
