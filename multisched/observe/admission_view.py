"""Reviews of objects before they are stored: the responses to AdmissionReviews of `admission.k8s.io/v1`.

The composition root implements AdmissionSource; the server calls it and depends on no kind of object.
"""

from __future__ import annotations

from typing import Final, Protocol

VALIDATE_QUOTAS_PATH: Final = "/validate/quotas"
REVIEW_BYTES_MAX: Final = 8 * 1024 * 1024
"""Limit of a review: the object and its old version, 1.5 MiB each at most in etcd, and more as JSON."""
REVIEWS_MAX: Final = 2
"""Reviews at the same time; further ones get a 429."""


class NotReviewedError(Exception):
    """The body is not a review that can be answered; the message gives the reason."""


class AdmissionSource(Protocol):
    """Reviews quotas off the loop.

    A Protocol because `observe` does not import the composition root; implemented there.
    """

    async def review(self, body: bytes) -> bytes:
        """Returns the AdmissionReview with its response. Raises NotReviewedError."""
        ...
