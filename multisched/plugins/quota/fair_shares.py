"""Fair shares: each level's share of its parent's capacity, given the requests of all levels.

First each level gets its request up to its min. The rest is divided by weight among levels that request more, until
nothing is left or all requests are met. No level gets more than its request or its max, and its request is limited to
what the levels below it may hold. Shares are integers; remainders are distributed by the largest-remainder method. A
guarantee counts as requested even if no pod requests it.
Source: Koordinator's runtime quota (`reference`: elastic quota). A min that must not be lent is a guarantee here.
"""

from __future__ import annotations

from collections.abc import Sequence

from multisched.model.objects import Requests
from multisched.model.quota_tree import QuotaTree


def fair_shares(tree: QuotaTree, requested: Sequence[Requests]) -> list[dict[str, int]]:
    """Returns resource -> share, by position in the tree. `requested`: per level, what its pods hold plus what pending ones request."""
    shares: list[dict[str, int]] = [{} for _ in tree.nodes]
    requested = _asked(tree, requested)
    for resource in sorted(tree.resources):
        root, asked = tree.nodes[0], requested[0].get(resource, 0)
        shares[0][resource] = min(asked, root.max.get(resource, asked))
        for at, node in enumerate(tree.nodes):
            if not node.children:
                continue
            whole = shares[at][resource]
            claims = [
                _claim(tree, child, resource, requested[child].get(resource, 0), whole) for child in node.children
            ]
            for child, share in zip(node.children, divide(whole, claims), strict=True):
                shares[child][resource] = share
    return shares


def _asked(tree: QuotaTree, requested: Sequence[Requests]) -> Sequence[Requests]:
    """Returns the requests, limited per level to guarantee..max; each level requests the sum of the levels below it.

    Without this, amounts that no level below can ever hold would reduce the siblings' shares to no benefit.
    """
    asked = [dict(one) for one in requested]
    for at in reversed(range(len(tree.nodes))):  # children before their parents
        node, own = tree.nodes[at], asked[at]
        for resource in {**node.guarantee, **node.max}:
            before = own.get(resource, 0)
            lifted = max(before, node.guarantee.get(resource, 0))
            more = min(lifted, node.max.get(resource, lifted)) - before
            for level in tree.paths[at] if more else ():
                asked[level][resource] = asked[level].get(resource, 0) + more
    return asked


Claim = tuple[int, int, int]
"""(guaranteed amount, requested amount, weight)"""


def _claim(tree: QuotaTree, at: int, resource: str, asked: int, whole: int) -> Claim:
    node = tree.nodes[at]
    most = min(asked, node.max.get(resource, asked))
    return min(node.min.get(resource, 0), most), most, node.weight_for(resource, whole)


def divide(whole: int, claims: Sequence[Claim]) -> list[int]:
    """Returns each claim's share. The sum is at most `whole`, and equals it if enough is requested.

    Claims of weight 0 get their guaranteed amount, and more only if the other claims are met.
    """
    shares = [sure for sure, _, _ in claims]
    left = whole - sum(shares)
    open_claims = [at for at, (sure, most, _) in enumerate(claims) if most > sure]
    while left > 0 and open_claims:
        weights = [claims[at][2] for at in open_claims]
        total = sum(weights)
        if not total:
            weights, total = [1] * len(open_claims), len(open_claims)
        parts = _largest_remainder(left, weights, total)
        given = 0
        for at, part in zip(open_claims, parts, strict=True):
            taken = min(part, claims[at][1] - shares[at])
            shares[at] += taken
            given += taken
        left -= given
        open_claims = [at for at in open_claims if shares[at] < claims[at][1]]
        if not given:  # all claims with a weight are met: those of weight 0 are next
            open_claims = [at for at in open_claims if not claims[at][2]]
    return shares


def _largest_remainder(amount: int, weights: Sequence[int], total: int) -> list[int]:
    parts = [amount * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(amount * weights[i] % total), i))
    for i in by_remainder[: amount - sum(parts)]:
        parts[i] += 1
    return parts
