"""Which domains share quotas although different processes may lead them, and the profile of such a domain. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from multisched.config.nodes import lease_groups_of
from multisched.config.plugins import enabled_plugins, points_with
from multisched.config.schema import Configuration
from multisched.framework.registry import Profile, Registry
from multisched.plugins.quota.quota_ledger import QUOTA
from multisched.plugins.quota.shared.terms import SHARING_ARG, QuotaSharing


def quota_sharing_of(configuration: Configuration, registry: Registry) -> QuotaSharing | None:
    """Returns the domains under quotas that have several Leases; None if one process leads all of them.

    Raises PluginSetupError for an unknown plugin.
    """
    if not (configuration.lease.enabled and configuration.lease.per_domain):
        return None
    groups = lease_groups_of(configuration)
    limited = [domain for domain in configuration.domains if QUOTA in enabled_plugins(domain, registry)]
    borrowers = {
        domain.name: frozenset(domain.scheduler_names)
        for domain in limited
        if groups[domain.name] != groups[limited[0].name]
    }
    return QuotaSharing(limited[0].name, borrowers) if borrowers else None


def sharing_profile(profile: Profile, sharing: QuotaSharing | None, registry: Registry) -> Profile:
    """Returns the profile with ElasticQuota as it is for a domain that shares quotas. Its further points may list their plugins."""
    plain = next((use for use in profile.plugins if use.name == QUOTA), None)
    if sharing is None or plain is None:
        return profile
    shared = replace(plain, args={**plain.args, SHARING_ARG: sharing})
    plugins = tuple(shared if use is plain else use for use in profile.plugins)
    named = set(points_with(shared, registry)).difference(points_with(plain, registry))
    points = {
        point: names if point not in named or QUOTA in names else (*names, QUOTA)
        for point, names in profile.points.items()
    }
    return Profile(plugins, points)
