"""Which domains share quotas across processes, and the plugin that they get."""

from __future__ import annotations

from multisched.config import loading
from multisched.config.plugins import plugin_registry, resolve_profile
from multisched.config.quota_sharing import quota_sharing_of, sharing_profile
from multisched.plugins.quota.shared.terms import SHARING_ARG, QuotaSharing

HEAD = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\n"
DOMAINS = "domains:\n- name: gpu\n- name: job\n- name: web\n  nodes: {rule: labelled}\n"
WITHOUT = "  profile: {plugins: {disabled: [ElasticQuota]}}\n"


def sharing(lease: str, domains: str = DOMAINS) -> QuotaSharing | None:
    return quota_sharing_of(loading.parse(f"{HEAD}lease: {{{lease}}}\n{domains}", "f"), plugin_registry())


def test_first_domain_lends_to_domains_under_other_leases() -> None:
    found = sharing("perDomain: true")
    assert found is not None
    assert (found.lender, sorted(found.borrowers)) == ("gpu", ["job", "web"])
    assert found.borrowers["web"] == frozenset({"web-scheduler"})


def test_one_lease_shares_nothing() -> None:
    assert sharing("perDomain: false") is None
    assert sharing("perDomain: true, enabled: false") is None
    assert sharing("perDomain: true", "domains:\n- name: gpu\n") is None


def test_domain_under_the_lenders_lease_or_without_quotas_borrows_nothing() -> None:
    found = sharing("perDomain: true", DOMAINS + "  loans: [{from: gpu}]\n")
    assert found is not None
    assert sorted(found.borrowers) == ["job"]
    found = sharing("perDomain: true", DOMAINS.replace("- name: job\n", f"- name: job\n{WITHOUT}"))
    assert found is not None
    assert sorted(found.borrowers) == ["web"]
    found = sharing("perDomain: true", DOMAINS.replace("- name: gpu\n", f"- name: gpu\n{WITHOUT}"))
    assert found is not None
    assert found.lender == "job"


def test_plugin_of_a_sharing_domain_is_called_at_permit_even_if_the_profile_lists_other_plugins_there() -> None:
    listed = DOMAINS + "  profile: {plugins: {}, points: {reserve: [], permit: [], postFilter: [DefaultPreemption]}}\n"
    configuration = loading.parse(f"{HEAD}lease: {{perDomain: true}}\n{listed}", "f")
    registry, (*_, web) = plugin_registry(), configuration.domains
    profile = sharing_profile(resolve_profile(web, registry), quota_sharing_of(configuration, registry), registry)
    assert profile.points["Permit"] == ("ElasticQuota",)
    assert profile.points["Reserve"] == ("ElasticQuota",)
    assert profile.points["PostFilter"] == ("DefaultPreemption",)
    (use,) = [one for one in profile.plugins if one.name == "ElasticQuota"]
    assert SHARING_ARG in use.args
