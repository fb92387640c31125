"""The place where commands find the kubeconfig of a running demo, so that `multisched quota tree` needs no option.

It is a symbolic link in the folder where processes of this user store their tokens. It points to the kubeconfig of the latest demo, which
removes the link when it ends.
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
    """Returns the kubeconfig of the running demo; None if none runs."""
    link = token_folder(environment) / NAME
    return link.resolve() if link.exists() else None


@contextmanager
def found_by_commands(kubeconfig: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Creates the link, and removes it at exit. If the folder is not writable, there is no link, and users must name the kubeconfig."""
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
