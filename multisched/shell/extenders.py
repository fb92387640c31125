"""The HTTP extenders of a program: their clients, the full objects sent to them, and the plugin that calls them.

Owns the clients until `close`. Called by `Program`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence

from multisched.client.extender_client import ApiDocuments, HttpExtenderClient
from multisched.client.object_feed import ReflectorHandler
from multisched.config.extenders import ExtenderConfig, ExtenderTls
from multisched.config.schema import DomainConfig
from multisched.framework.points import Plugin
from multisched.framework.ports import ExtenderClient, ExtenderError, ExtenderSettings, ExtenderTrust
from multisched.framework.registry import PluginSetupError
from multisched.model.wire import Transport
from multisched.plugins.extender.http_extender import HTTPExtenders

OpenExtender = Callable[[ExtenderSettings], ExtenderClient]


class Extenders:
    """The extenders of all domains. Each domain has its own client, so requests of two domains to one extender run concurrently."""

    def __init__(
        self, domains: Sequence[DomainConfig], transport: Transport, open_client: OpenExtender | None = None
    ) -> None:
        """`open_client`: creates the clients; None: over HTTP. Simulations replace it."""
        self._open_client = open_client or HttpExtenderClient
        self._clients: list[ExtenderClient] = []
        self._documents = ApiDocuments(transport)
        self._sends_nodes = any(_sends_nodes(extender) for domain in domains for extender in domain.extenders)

    def plugins_of(self, domain: DomainConfig) -> tuple[Plugin, ...]:
        """Returns the plugin for the domain's extenders, to be added to its profile; empty if it has none.

        Raises PluginSetupError.
        """
        if not domain.extenders:
            return ()
        try:
            clients = [self._open_client(settings_of(extender)) for extender in domain.extenders]
        except ExtenderError as error:
            raise PluginSetupError(f"domain {domain.name}: {error}") from error
        self._clients += clients
        return (HTTPExtenders(clients, self._documents),)

    def watching(self, nodes: ReflectorHandler) -> ReflectorHandler:
        """Returns the handler of nodes; wrapped to keep full node objects if an extender receives them."""
        return self._documents.watching(nodes) if self._sends_nodes else nodes

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


class OfflineExtender:
    """An `ExtenderClient` for sandboxes. Every call raises ExtenderError; needs no certificate and no network."""

    def __init__(self, settings: ExtenderSettings) -> None:
        self.settings = settings

    async def post(self, verb: str, body: bytes, *, answer_bytes_max: int) -> bytes:
        raise ExtenderError(f'extender "{self.settings.url}" ({verb}): is not called in a sandbox', was_sent=False)

    async def close(self) -> None:
        """Does nothing."""


def settings_of(extender: ExtenderConfig) -> ExtenderSettings:
    """Converts the configuration of an extender to the framework's settings."""
    return ExtenderSettings(
        extender.url_prefix,
        filter_verb=extender.filter_verb,
        prioritize_verb=extender.prioritize_verb,
        preempt_verb=extender.preempt_verb,
        bind_verb=extender.bind_verb,
        weight=extender.weight,
        timeout_s=extender.http_timeout_s,
        is_node_cache_capable=extender.node_cache_capable,
        managed_resources=frozenset(resource.name for resource in extender.managed_resources),
        is_ignorable=extender.ignorable,
        trust=_trust(extender.tls_config),
    )


def _trust(tls: ExtenderTls) -> ExtenderTrust:
    return ExtenderTrust(
        is_insecure=tls.insecure,
        server_name=tls.server_name,
        ca_file=tls.ca_file,
        cert_file=tls.cert_file,
        key_file=tls.key_file,
        ca_data=base64.b64decode(tls.ca_data),
        cert_data=base64.b64decode(tls.cert_data),
        key_data=base64.b64decode(tls.key_data),
    )


def _sends_nodes(extender: ExtenderConfig) -> bool:
    return not extender.node_cache_capable and bool(extender.filter_verb or extender.prioritize_verb)
