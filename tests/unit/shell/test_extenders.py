"""Extenders of a program: what the configuration says reaches their clients, and whole nodes are kept only for who is sent them."""

from __future__ import annotations

import base64

import pytest

from multisched.config import loading
from multisched.config.schema import Configuration
from multisched.framework.ports import ExtenderClient, ExtenderError, ExtenderSettings, ExtenderTrust
from multisched.framework.registry import PluginSetupError
from multisched.shell.extenders import Extenders, OfflineExtender, settings_of
from tests.unit.client.scripted import Mirror, ScriptedTransport

PEM = base64.b64encode(b"ca").decode(), base64.b64encode(b"cert").decode(), base64.b64encode(b"key").decode()
FULL = f"""
- urlPrefix: https://extender.example:8443/scheduler
  filterVerb: filter
  prioritizeVerb: rate
  preemptVerb: displace
  bindVerb: bind
  weight: 7
  httpTimeout: 2s
  nodeCacheCapable: true
  ignorable: true
  managedResources: [{{name: example.com/fpga}}, {{name: example.com/npu}}]
  tlsConfig: {{insecure: false, serverName: other.example, caData: {PEM[0]}, certData: {PEM[1]}, keyData: {PEM[2]}}}
"""
FILES = """
- urlPrefix: https://extender.example/scheduler
  filterVerb: filter
  tlsConfig: {caFile: /ca, certFile: /cert, keyFile: /key}
"""


def configured(extenders: str) -> Configuration:
    text = extenders.strip().replace("\n", "\n  ")
    return loading.parse(
        f"""
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
- name: forecast
  extenders:
  {text}
""",
        "test",
    )


def settings(extenders: str) -> ExtenderSettings:
    (extender,) = configured(extenders).domains[0].extenders
    return settings_of(extender)


def test_every_extender_setting_reaches_the_client() -> None:
    assert settings(FULL) == ExtenderSettings(
        "https://extender.example:8443/scheduler",
        filter_verb="filter",
        prioritize_verb="rate",
        preempt_verb="displace",
        bind_verb="bind",
        weight=7,
        timeout_s=2.0,
        is_node_cache_capable=True,
        managed_resources=frozenset({"example.com/fpga", "example.com/npu"}),
        is_ignorable=True,
        trust=ExtenderTrust(server_name="other.example", ca_data=b"ca", cert_data=b"cert", key_data=b"key"),
    )
    assert settings(FILES) == ExtenderSettings(
        "https://extender.example/scheduler",
        filter_verb="filter",
        weight=0,
        trust=ExtenderTrust(ca_file="/ca", cert_file="/cert", key_file="/key"),
    )
    insecure = FILES.replace("{caFile: /ca, certFile: /cert, keyFile: /key}", "{insecure: true}")
    assert settings(insecure).trust == ExtenderTrust(is_insecure=True)


@pytest.mark.parametrize(
    ("extenders", "keeps"),
    [
        ("- {urlPrefix: 'http://e', filterVerb: filter}", True),
        ("- {urlPrefix: 'http://e', prioritizeVerb: rate, weight: 1}", True),
        ("- {urlPrefix: 'http://e', filterVerb: filter, nodeCacheCapable: true}", False),
        ("- {urlPrefix: 'http://e', bindVerb: bind}", False),
    ],
)
def test_whole_nodes_are_stored_only_for_extenders_that_need_them(extenders: str, keeps: bool) -> None:
    nodes = Mirror()
    found = Extenders(configured(extenders).domains, ScriptedTransport(), OfflineExtender).watching(nodes)
    assert (found is not nodes) is keeps


async def test_each_domain_has_its_own_extender_clients_closed_with_the_program() -> None:
    opened: list[Closing] = []

    class Closing(OfflineExtender):
        is_closed = False

        async def close(self) -> None:
            self.is_closed = True

    def open_client(settings: ExtenderSettings) -> ExtenderClient:
        opened.append(Closing(settings))
        return opened[-1]

    configuration = configured(FULL + FILES.strip())
    (domain,) = configuration.domains
    extenders = Extenders([domain, domain], ScriptedTransport(), open_client)
    plugins = [*extenders.plugins_of(domain), *extenders.plugins_of(domain)]
    assert [plugin.name for plugin in plugins] == ["Extender"] * 2
    assert [one.settings.url for one in opened] == [settings(FULL).url, settings(FILES).url] * 2
    await extenders.close()
    assert all(one.is_closed for one in opened)


def test_domain_without_extenders_has_no_plugin_and_an_unusable_one_is_named() -> None:
    def refuse(settings: ExtenderSettings) -> ExtenderClient:
        raise ExtenderError("no such certificate")

    (domain,) = configured(FILES).domains
    extenders = Extenders([domain], ScriptedTransport(), refuse)
    with pytest.raises(PluginSetupError, match=r"^domain forecast: no such certificate$"):
        extenders.plugins_of(domain)
    (plain,) = loading.parse(
        "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\ndomains: [{name: gpu}]", "t"
    ).domains
    assert extenders.plugins_of(plain) == ()


async def test_sandbox_calls_no_extender() -> None:
    extender = OfflineExtender(settings(FILES))
    with pytest.raises(ExtenderError) as refused:
        await extender.post("filter", b"", answer_bytes_max=1)
    words = 'extender "https://extender.example/scheduler" (filter): is not called in a sandbox'
    assert (str(refused.value), refused.value.was_sent) == (words, False)
