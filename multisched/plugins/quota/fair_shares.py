"""Fair shares: how much of what its parent has each level may count on, given what all of them ask for.

First everybody gets what it asks for, up to its min. What is left goes by weight to those who ask for more, until nothing
is left or nobody asks. Nobody gets more than it asks for, or than its max; a level asks for no more than those below may
hold. Shares are whole numbers; what division leaves goes by largest remainder. A guarantee counts as asked for, whether
anybody asks or not.
Source: Koordinator's runtime quota (`reference`: elastic quota), without min below request being lent to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from multisched.model.objects import Requests
from multisched.model.quota_tree import QuotaTree


def fair_shares(tree: QuotaTree, requested: Sequence[Requests]) -> list[dict[str, int]]:
    """By position in the tree: resource -> share. `requested`: what the pods of each level hold and ask for together."""
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
    """Each level asks for its guarantee at least, and for no more than its max; one above asks for what those below it do.

    What no level below could ever hold is asked for by nobody: siblings would get less, and nobody would get anything by it.
    """
    asked = [dict(one) for one in requested]
    for at in reversed(range(len(tree.nodes))):  # what is below a level comes before it
        node, own = tree.nodes[at], asked[at]
        for resource in {**node.guarantee, **node.max}:
            before = own.get(resource, 0)
            lifted = max(before, node.guarantee.get(resource, 0))
            more = min(lifted, node.max.get(resource, lifted)) - before
            for level in tree.paths[at] if more else ():
                asked[level][resource] = asked[level].get(resource, 0) + more
    return asked


Claim = tuple[int, int, int]
"""(what is sure, what is asked for at most, weight)"""


def _claim(tree: QuotaTree, at: int, resource: str, asked: int, whole: int) -> Claim:
    node = tree.nodes[at]
    most = min(asked, node.max.get(resource, asked))
    return min(node.min.get(resource, 0), most), most, node.weight_for(resource, whole)


def divide(whole: int, claims: Sequence[Claim]) -> list[int]:
    """What each claim gets: together no more than the whole, and all of it if it is asked for.

    Claims of weight 0 get what is sure, and more only if nobody else asks.
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
        if not given:  # those with a weight are full: the others come next
            open_claims = [at for at in open_claims if not claims[at][2]]
    return shares


def _largest_remainder(amount: int, weights: Sequence[int], total: int) -> list[int]:
    parts = [amount * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(amount * weights[i] % total), i))
    for i in by_remainder[: amount - sum(parts)]:
        parts[i] += 1
    return parts
