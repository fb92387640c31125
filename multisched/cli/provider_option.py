"""The options `--virtual N` and `--provider KEY=VALUE` of `multisched cluster`."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from multisched.cli.options import fail
from multisched.cluster.client.object_client import Document
from multisched.cluster.kubelet.provider import ProviderSettings
from multisched.cluster.virtual_nodes import CAPACITY, virtual_nodes
from multisched.model.near_names import did_you_mean
from multisched.model.quantity import QuantityError, parse_value

_SETTINGS = tuple(name for name in ProviderSettings.__struct_fields__ if name != "failures")


def nodes_of(count: int, texts: Iterable[str]) -> tuple[Document, ...]:
    """Returns `count` virtual nodes of the provider that these texts describe; exits as `provider_of`."""
    return tuple(virtual_nodes(count, *provider_of(texts)))


def provider_of(texts: Iterable[str]) -> tuple[ProviderSettings, dict[str, str]]:
    """Returns the provider's settings and the capacity of its nodes; exits with a sentence for an unknown key or an invalid value."""
    settings: dict[str, str] = {}
    capacity: dict[str, str] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key not in (*_SETTINGS, *CAPACITY):
            near = did_you_mean(key, (*_SETTINGS, *CAPACITY), f"write one of {', '.join((*_SETTINGS, *CAPACITY))}")
            fail(f"--provider {text}: {key!r} is not a setting; {near}")
        try:
            if key in CAPACITY:
                parse_value(value)
                capacity[key] = value
            else:
                settings[key] = value
                msgspec.convert({key: value}, ProviderSettings, strict=False)
        except (QuantityError, msgspec.ValidationError) as error:
            fail(f"--provider {text}: {error}")
    return msgspec.convert(settings, ProviderSettings, strict=False), capacity
