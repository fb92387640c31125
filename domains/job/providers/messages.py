"""The meaning of messages of serverless providers: ProviderFailed of virtual kubelets, and events about pods that get no sandbox.

A table of texts that providers document or users have reported, each with its source; facts only. The configuration adds entries, which
come first. An unknown message is transient.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

CHARACTERS_READ: Final = 4096
"""Maximum number of characters of a message that are read."""
MESSAGES_CACHED: Final = 4096


class Failure(Enum):
    """The meaning of one failure."""

    THROTTLED = "throttled"
    """Too many creates: the rate of the unit is too high."""
    PERMANENT = "permanent"
    """Pods of this template never run in this unit, as long as neither changes."""
    TRANSIENT = "transient"
    """The unit fails now: outages, stock and quotas of the account."""


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """A text that means one thing wherever it occurs in a message or its reason, in upper or lower case."""

    text: str
    failure: Failure
    source: str


def _known(failure: Failure, source: str, *texts: str) -> tuple[KnownMessage, ...]:
    return tuple(KnownMessage(text.casefold(), failure, source) for text in texts)


_ECI = "ECI custom events (help.aliyun.com/en/eci/user-guide/custom-events-of-elastic-container-instance)"
_ALIBABA = "error codes of Alibaba Cloud's OpenAPI"
_FARGATE = "EKS pending Fargate pods (repost.aws/knowledge-center/eks-resolve-pending-fargate-pods)"
_AWS = "aws/containers-roadmap#768, #1890, #2034; terraform-aws-eks#1758; dask-cloudprovider#56"
_ACI = "virtual-kubelet#153, #50, #411, #592; azure-aci#132; MicrosoftDocs/azure-docs#51738; ACI troubleshooting"
_ACI_CODE = "virtual-kubelet/azure-aci, pkg/provider/aci.go and volumes.go"
_ECI_CODE = "virtual-kubelet/alibabacloud-eci, eci.go"
_VK_CODE = "virtual-kubelet @7b1385bcb, internal/podutils/env.go"

KNOWN: Final = (
    *_known(Failure.THROTTLED, _ALIBABA, "Throttling", "flow control"),
    *_known(Failure.THROTTLED, _AWS, "ThrottlingException", "Rate exceeded", "RequestLimitExceeded", "TooManyRequests"),
    *_known(Failure.THROTTLED, _ACI, "status code 429", "429 Too Many", "SubscriptionRequestsThrottled"),
    # stock, quotas and outages come before refusals: their messages may name parameters too
    *_known(
        Failure.TRANSIENT,
        _ECI,
        "NoStock",
        "out of stock",
        "StockClose",
        "InsufficientBalance",
        "DiskCapacityQuotaFull",
        "under heavy load",
    ),
    *_known(Failure.TRANSIENT, _ALIBABA, "QuotaExceeded", "InternalError", "ServiceUnavailable", "Arrearage"),
    *_known(
        Failure.TRANSIENT,
        _AWS,
        "capacity is unavailable at this time",
        "provisioning timed out",
        "reached the limit on the number",
    ),
    *_known(
        Failure.TRANSIENT,
        _ACI,
        "ServerTimeout",
        "ContainerGroupQuotaReached",
        "container group quota",
        "not available in the location",
        "status code 5",
    ),
    *_known(
        Failure.PERMANENT,
        _ACI,
        "ContainerLimitGreaterThanContainerGroupTotalRequest",
        "ResourceSomeRequestsNotSpecified",
        "InvalidRequestContent",
        "InaccessibleImage",
        "InvalidImageRegistryCredentialType",
        "OsVersionNotSupported",
    ),
    *_known(
        Failure.PERMANENT,
        _ACI_CODE,
        "image pull secret",
        "present in auth config for server",
        "malformed auth for server",
        "malformed dockerconfigjson",
        "present in secret",
        "and does not exist",
        "of an unsupported type",
        "ACI does not support",
        "azure container instances initContainers do not support",
        "the pod requires GPU",
        "probe may not specify more than one",
        "probe must specify one",
        "unable to find named port",
    ),
    *_known(Failure.PERMANENT, _ECI_CODE, "failed to unmarshal auth config"),
    *_known(Failure.PERMANENT, _ALIBABA, "InvalidParameter", "MissingParameter"),
    *_known(Failure.PERMANENT, _FARGATE, "not supported on fargate"),
    *_known(
        Failure.PERMANENT,
        _VK_CODE,
        "MandatoryConfigMapNotFound",
        "MandatoryConfigMapKeyNotFound",
        "MandatorySecretNotFound",
        "MandatorySecretKeyNotFound",
        "unsupported fieldPath",
    ),
)
"""The table, in the order of its application."""


class Messages:
    """Classifies messages by the configuration's entries, then by KNOWN."""

    def __init__(self, own: Iterable[tuple[str, Failure]] = ()) -> None:
        """`own`: texts of the configuration and what they mean. Raises ValueError for an empty text, which every message contains."""
        added = [KnownMessage(text.casefold(), failure, "configuration") for text, failure in own]
        if not all(one.text.strip() for one in added):
            raise ValueError("a provider message is empty, and would match all; write a part of the message")
        self._known = (*added, *KNOWN)
        self._find = lru_cache(maxsize=MESSAGES_CACHED)(self._search)

    def classify(self, message: str, reason: str = "") -> Failure:
        """Returns what a failure means. `reason`: of the event, if it is one."""
        known = self.find(message, reason)
        return Failure.TRANSIENT if known is None else known.failure

    def find(self, message: str, reason: str = "") -> KnownMessage | None:
        """Returns the entry that decides; None for an unknown message."""
        return self._find(f"{reason}: {message[:CHARACTERS_READ]}")

    def _search(self, text: str) -> KnownMessage | None:
        folded = text.casefold()
        return next((known for known in self._known if known.text in folded), None)
