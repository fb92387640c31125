"""Where commands find the kubeconfig of a running demo, so that `multisched quota tree` works beside it without an option.

A link in the folder where processes of this user keep their tokens. The latest demo has it; it goes with the demo.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from multisched.observe.loopback import token_folder

NAME: Final = "demo-kubeconfig"


def demo_kubeconfig(environment: Mapping[str, str]) -> Path | None:
    """That of the demo that runs; None where none does."""
    link = token_folder(environment) / NAME
    return link.resolve() if link.exists() else None


@contextmanager
def found_by_commands(kubeconfig: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """While the context is open. Where the folder cannot be written, users name the file themselves."""
    link = token_folder(environment) / NAME
    target = kubeconfig.resolve()
    with suppress(OSError):
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = link.with_name(f"{NAME}.{os.getpid()}")
        fresh.symlink_to(target)
        fresh.replace(link)
    try:
        yield
    finally:
        with suppress(OSError):
            if link.readlink() == target:
                link.unlink()
