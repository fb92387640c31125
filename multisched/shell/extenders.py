"""The HTTP extenders of a program: their clients, the whole objects they are sent, and the plugin that asks them.

Owns the clients from the start to `close`. Called by `program`.
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
    """Those of all domains. Domains that name the same extender have a client each: their requests do not wait for one another."""

    def __init__(
        self, domains: Sequence[DomainConfig], transport: Transport, open_client: OpenExtender | None = None
    ) -> None:
        """`open_client`: another way to reach an extender than HTTP, for simulations."""
        self._open_client = open_client or HttpExtenderClient
        self._clients: list[ExtenderClient] = []
        self._documents = ApiDocuments(transport)
        self._sends_nodes = any(_sends_nodes(extender) for domain in domains for extender in domain.extenders)

    def plugins_of(self, domain: DomainConfig) -> tuple[Plugin, ...]:
        """What stands beside the domain's profile; nothing for one without extenders. Raises PluginSetupError."""
        if not domain.extenders:
            return ()
        try:
            clients = [self._open_client(settings_of(extender)) for extender in domain.extenders]
        except ExtenderError as error:
            raise PluginSetupError(f"domain {domain.name}: {error}") from error
        self._clients += clients
        return (HTTPExtenders(clients, self._documents),)

    def watching(self, nodes: ReflectorHandler) -> ReflectorHandler:
        """The handler of nodes; with an extender that is sent whole nodes, one that keeps them too."""
        return self._documents.watching(nodes) if self._sends_nodes else nodes

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


class UnaskedExtender:
    """An `ExtenderClient` for sandboxes, which ask nobody: needs no certificate and no network."""

    def __init__(self, settings: ExtenderSettings) -> None:
        self.settings = settings

    async def post(self, verb: str, body: bytes, *, answer_bytes_max: int) -> bytes:
        raise ExtenderError(f'extender "{self.settings.url}" ({verb}): is not asked in a sandbox', was_sent=False)

    async def close(self) -> None:
        """Nothing is open."""


def settings_of(extender: ExtenderConfig) -> ExtenderSettings:
    """What the configuration says, as the framework takes it."""
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
