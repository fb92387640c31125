"""The option `--gpu-nodes MODE=N` of `multisched cluster`."""

from __future__ import annotations

from collections.abc import Iterable

from multisched.cli.options import fail
from multisched.cluster.gpu_nodes import GPU_TEMPLATES
from multisched.model.near_names import did_you_mean


def counts_of(texts: Iterable[str], most: int) -> tuple[tuple[str, int], ...]:
    """Returns template and number of nodes of each text; exits with a sentence for an unknown template or an invalid number."""
    found: dict[str, int] = {}
    for text in texts:
        mode, _, number = text.partition("=")
        if mode not in GPU_TEMPLATES:
            near = did_you_mean(mode, GPU_TEMPLATES, f"write one of {', '.join(GPU_TEMPLATES)}")
            fail(f"--gpu-nodes {text}: {mode!r} is not a kind of GPU node; {near}")
        if not (number.isascii() and number.isdecimal() and len(number) <= len(str(most)) and int(number) <= most):
            fail(f"--gpu-nodes {text}: {number!r} is not a number of nodes up to {most}; write for instance {mode}=2")
        found[mode] = found.get(mode, 0) + int(number)
    return tuple(found.items())
