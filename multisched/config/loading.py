"""Reads, checks and completes the configuration.

`load` and `parse` return a complete Configuration or raise ConfigError with all problems at once. Each problem has file,
line, column and path, and a suggestion if a similar name exists. A check has no side effects, except that plugins named by
import path are imported. Called by `cli` and the composition root.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from multisched.config import document as config_document
from multisched.config.document import ConfigError, Document, Problem, items_at, part_at, read_document, texts_at
from multisched.config.loans import circle_of_loans
from multisched.config.nodes import surely_share
from multisched.config.plugins import domain_module, plugin_registry
from multisched.config.profile import check_args, check_profile
from multisched.config.schema import (
    API_VERSION,
    BUILT_IN_DOMAINS,
    KIND,
    Configuration,
    DomainConfig,
    NodeRule,
    Nodes,
    Policy,
)
from multisched.config.structure import from_plain, nearest, validated
from multisched.framework.registry import PluginSetupError, Registry

_BUILT_IN_RULES: Final = {"gpu": NodeRule.GPU, "job": NodeRule.VIRTUAL, "forecast": NodeRule.REST}


def load(path: Path) -> Configuration:
    """Returns the configuration in a file. Raises ConfigError, also if the file cannot be read."""
    return parse(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Returns a file's text, at most one byte more than `read_document` accepts. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(config_document.DOCUMENT_BYTES_MAX + 1)
        return content.decode()
    except OSError as error:
        raise ConfigError([Problem(str(path), 1, 1, "", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(str(path), 1, 1, "", "is not UTF-8 text")]) from error


def parse(text: str, file: str) -> Configuration:
    """Returns the configuration in `text`; problems name it as `file`. Raises ConfigError."""
    document = read_document(text, file, if_empty="; `multisched config default` prints one to start from")
    configuration = validated(document, Configuration)
    domains = _good_domains(document) if configuration is None else dict(enumerate(configuration.domains))
    complete = {index: _complete_domain(domain) for index, domain in domains.items()}
    registry = plugin_registry()
    _check_names(document, registry)
    _check_nodes(document, complete)
    _check_circles(document, complete)
    for index, domain in complete.items():
        check_profile(document, ("domains", index, "profile"), domain, registry)
    if document.problems or configuration is None:
        raise ConfigError(document.problems)
    return replace(configuration, domains=tuple(complete.values()))


def default() -> Configuration:
    """Returns the configuration of `run` without a file: the three built-in domains."""
    configuration = Configuration(api_version=API_VERSION, kind=KIND)
    return replace(configuration, domains=tuple(_complete_domain(d) for d in configuration.domains))


def _good_domains(document: Document) -> dict[int, DomainConfig]:
    """Returns the domains that are valid on their own, so that problems between them are reported in the same run."""
    items = document.data.get("domains") if isinstance(document.data, dict) else None
    good: dict[int, DomainConfig] = {}
    for index, item in enumerate(items if isinstance(items, list) else ()):
        domain = validated(Document(document.file, item), DomainConfig)
        if domain is not None:
            good[index] = domain
    return good


# ---- completion


def _complete_domain(domain: DomainConfig) -> DomainConfig:
    """Fills in the settings that the domain's name implies."""
    is_built_in = domain.name in BUILT_IN_DOMAINS
    base = domain.profile.base or (domain.name if is_built_in else "default")
    return replace(
        domain,
        scheduler_names=domain.scheduler_names or (_scheduler_name(domain.name),),
        nodes=_complete_nodes(domain),
        profile=replace(domain.profile, base=base),
        policy=_complete_policy(domain, is_built_in=is_built_in),
    )


def _scheduler_name(domain: str) -> str:
    return domain if domain.endswith("-scheduler") else f"{domain}-scheduler"


def _complete_nodes(domain: DomainConfig) -> Nodes:
    if domain.nodes.selector is not None or domain.nodes.rule is not None:
        return domain.nodes
    otherwise = NodeRule.LABELLED if domain.loans else NodeRule.REST
    return Nodes(rule=_BUILT_IN_RULES.get(domain.name, otherwise))


def _complete_policy(domain: DomainConfig, *, is_built_in: bool) -> Policy:
    if domain.policy.tolerations is not None:
        return domain.policy
    own = getattr(domain_module(domain.name), "POLICY", {}) if is_built_in else {}
    policy = from_plain(own, Policy)
    return policy if policy.tolerations is not None else Policy(tolerations=())


# ---- names, read from the plain data so that they are checked even if there are other problems


def _check_names(document: Document, registry: Registry) -> None:
    domains = items_at(document.data, ("domains",))
    names = [found for domain in domains for found in texts_at(document.data, (*domain, "name"))]
    _check_unique(document, names, "domain")
    _check_unique(document, _scheduler_names(document, domains), "schedulerName")
    known = [name for _, name in names]
    for domain in domains:
        _check_lenders(document, domain, known)
        _check_plugins(document, (*domain, "profile"), registry)


def _scheduler_names(
    document: Document, domains: list[config_document.Path]
) -> Iterator[tuple[config_document.Path, str]]:
    for domain in domains:
        written = items_at(document.data, (*domain, "schedulerNames"))
        for path in written:
            yield from texts_at(document.data, path)
        if not written:
            for path, name in texts_at(document.data, (*domain, "name")):
                yield path, _scheduler_name(name)


def _check_lenders(document: Document, domain: config_document.Path, known: list[str]) -> None:
    own = [name for _, name in texts_at(document.data, (*domain, "name"))]
    for loan in items_at(document.data, (*domain, "loans")):
        for path, lender in texts_at(document.data, (*loan, "from")):
            if lender in own:
                document.add(path, "a domain cannot lend to itself")
            elif lender not in known:
                document.add(path, f"no domain is named {lender!r}", suggestion=nearest(lender, known))


def _check_plugins(document: Document, profile: config_document.Path, registry: Registry) -> None:
    plugins = (*profile, "plugins")
    entries = items_at(document.data, (*plugins, "enabled"))
    enabled = [found for path in entries for found in texts_at(document.data, (*path, "name"))]
    disabled = items_at(document.data, (*plugins, "disabled"))
    others = [found for path in disabled for found in texts_at(document.data, path) if found[1] != "*"]
    _check_unique(document, enabled, "plugin")
    for path, name in [*enabled, *others, *texts_at(document.data, (*profile, "queueSort"))]:
        _check_plugin(document, path, name, registry)
    for path, name in enabled:
        args = part_at(document.data, (*path[:-1], "args"))
        if isinstance(args, dict):
            check_args(document, (*path[:-1], "args"), name, args, registry)


def _check_plugin(document: Document, path: config_document.Path, name: str, registry: Registry) -> None:
    try:
        registry.factory(name)
    except PluginSetupError as error:
        near = "" if ":" in name else nearest(name, registry.names())
        reason = "is not a plugin" if near else str(error).removeprefix(f"plugin {name}: ")
        document.add(path, f"{name!r} {reason}" if near else f"{name!r}: {reason}", suggestion=near)


def _check_unique(document: Document, claims: Iterable[tuple[config_document.Path, str]], kind: str) -> None:
    first: dict[str, config_document.Path] = {}
    for path, name in claims:
        if name in first:
            other = config_document.render_path(first[name])
            document.add(path, f"{kind} {name!r} is already used by {other}; use another one")
        else:
            first[name] = path


# ---- between and within domains


def _check_nodes(document: Document, domains: dict[int, DomainConfig]) -> None:
    """Reports domains that select the same nodes: file order would decide between them. Nodes are shared by loans instead."""
    first: dict[object, DomainConfig] = {}
    for index, domain in domains.items():
        _check_selector(document, index, domain, [d for at, d in domains.items() if at < index])
        selector = domain.nodes.selector
        claim = domain.nodes.rule if selector is None else selector.compile()
        if claim is NodeRule.LABELLED:
            continue
        other = first.setdefault(claim, domain)
        if other is not domain:
            what = f"nodes by the rule {claim.value!r}" if isinstance(claim, NodeRule) else "the same nodes"
            document.add(
                ("domains", index, "nodes"),
                f"domain {domain.name!r} claims {what}, as domain {other.name!r} does;"
                f" give it a selector of its own, or write loans: [{{from: {other.name}}}] and no nodes",
                of_key=True,
            )


def _check_circles(document: Document, domains: dict[int, DomainConfig]) -> None:
    """Reports limited loans in a circle: what comes back to one domain would have to be recalled from the other."""
    circle = circle_of_loans(tuple(domains.values()))
    if circle:
        index = next(index for index, domain in domains.items() if domain.name == circle[0])
        path = " from ".join((*circle, circle[0]))
        document.add(("domains", index, "loans"), f"loans in a circle: {path}; remove one of these loans", of_key=True)


def _check_selector(document: Document, index: int, domain: DomainConfig, before: list[DomainConfig]) -> None:
    """Reports selectors that differ but can match the same nodes."""
    if domain.nodes.selector is None:
        return
    ours, borrowed = domain.nodes.selector.compile(), {loan.lender for loan in domain.loans}
    for other in before:
        theirs = other.nodes.selector.compile() if other.nodes.selector is not None else ours
        if theirs != ours and other.name not in borrowed and surely_share(ours, theirs):
            document.add(
                ("domains", index, "nodes"),
                f"domain {domain.name!r} claims some of the same nodes as domain {other.name!r};"
                f" make the selectors disjoint, or borrow the nodes by loans: [{{from: {other.name}}}]",
                of_key=True,
            )
