"""What messages of serverless providers mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.job.providers.messages import KNOWN, Failure, KnownMessage, Messages
from multisched.cluster.kubelet.provider import ProviderSettings

ACI = "api call to https://management.azure.com/…/containerGroups/x?api-version=2018-10-01: got HTTP response "


@pytest.mark.parametrize(
    ("message", "failure"),
    [
        (ProviderSettings().throttlingMessage, Failure.THROTTLED),
        (
            "SDK.ServerError ErrorCode: Throttling Message: Request was denied due to request throttling",
            Failure.THROTTLED,
        ),
        ("An error occurred (ThrottlingException): Rate exceeded", Failure.THROTTLED),
        (ACI + 'status code 429 error code "TooManyRequests"', Failure.THROTTLED),
        (ACI + 'status code 503 error code "ServerTimeout": The request timed out', Failure.TRANSIENT),
        (
            ACI + 'status code 409 error code "ServiceUnavailable": not available in the location westus',
            Failure.TRANSIENT,
        ),
        ("container group quota 'StandardCores' exceeded in region 'eastus'. Limit: '10'", Failure.TRANSIENT),
        ("Create ECI failed because the specified instance is out of stock. ecs.c6", Failure.TRANSIENT),
        ("Fargate capacity is unavailable at this time", Failure.TRANSIENT),
        (
            "Your AWS account has reached the limit on the number of Fargate pods it can run concurrently",
            Failure.TRANSIENT,
        ),
        (
            ACI + 'status code 400 error code "ContainerLimitGreaterThanContainerGroupTotalRequest"',
            Failure.PERMANENT,
        ),
        ("error getting image pull secret", Failure.PERMANENT),
        ("Pod default/x requires volume data which is of an unsupported type", Failure.PERMANENT),
        ("ErrorCode: InvalidParameter.CPU.Memory", Failure.PERMANENT),
        ("Pod not supported on Fargate: volumes not supported: data", Failure.PERMANENT),
        ("the unit is on fire", Failure.TRANSIENT),
        ("", Failure.TRANSIENT),
    ],
)
def test_reported_messages_are_classified(message: str, failure: Failure) -> None:
    assert Messages().classify(message) is failure


def test_reason_of_an_event_is_read_as_its_message_is() -> None:
    assert Messages().classify("", reason="MandatorySecretNotFound") is Failure.PERMANENT


@given(st.text(), st.sampled_from(KNOWN), st.text())
def test_known_text_is_found_anywhere_in_any_case(before: str, known: KnownMessage, after: str) -> None:
    found = Messages().find(before + known.text.upper() + after)

    assert found is not None
    assert KNOWN.index(found) <= KNOWN.index(known)


def test_entries_of_the_configuration_come_first() -> None:
    messages = Messages([("out of stock", Failure.PERMANENT), ("on fire", Failure.THROTTLED)])

    assert messages.classify("Create ECI failed: OUT OF STOCK") is Failure.PERMANENT
    assert messages.classify("the unit is on fire") is Failure.THROTTLED


def test_empty_text_in_the_configuration_is_refused() -> None:
    with pytest.raises(ValueError, match="match all"):
        Messages([(" ", Failure.PERMANENT)])
