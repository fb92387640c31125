"""What `multisched run` has imported when it asks for its first list: nothing that no start of this kind needs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

import multisched
from tests.perf.start_bench import KUBECONFIG, LIST_LIMIT_S, Witness

NEEDLESS: Final = {
    "cryptography": "the server speaks no TLS",
    "kubernetes_asyncio.client.configuration": "its loaders fill in settings of ours",
    "kubernetes_asyncio.client.rest": "session and TLS are ours",
    "multiprocessing": "nothing is isolated",
    "rich": "it logs JSON",
    "urllib3": "short requests and watches have their clients",
    "domains.forecast.commands": "nobody asks for a command",
    "domains.forecast.learning.fit": "the shipped forecast learns nothing",
    "domains.forecast.repair": "the shipped forecast repairs nothing",
    "multisched.cluster": "the embedded cluster is another command",
    "multisched.config.kube": "no configuration is converted",
    "multisched.demo": "another command",
    "multisched.simulate": "another command",
    "multisched.testing": "no test is run",
    "multisched.verify": "the judge comes with the first audit",
    "multisched.whatif.sandbox": "nobody asks",
}
"""A module or package -> why a start with the shipped configuration does without."""
NEEDED: Final = {"aiohttp", "numpy", "pydantic", "multisched.shell.program"}
"""Some that are there by then: the log holds the imports."""
ROOT: Final = Path(multisched.__file__).parents[1]


async def imported_before_the_first_list(folder: Path) -> set[str]:
    """As the interpreter logs it. The process is killed once it has asked."""
    witness = Witness()
    async with witness.serving() as port:
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(KUBECONFIG.format(port=port))
        command = [sys.executable, "-X", "importtime", "-m", "multisched", "run", "--kubeconfig", str(kubeconfig)]
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(*command, "--port", "0", stdout=log, stderr=log)
        try:
            async with asyncio.timeout(LIST_LIMIT_S):
                await witness.is_listed.wait()
        finally:
            process.kill()
            await process.wait()
    lines = (folder / "log").read_text().splitlines()
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}


async def test_a_start_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    imported = await imported_before_the_first_list(tmp_path)
    assert imported >= NEEDED
    own = [name for name in NEEDLESS if name.partition(".")[0] in ("multisched", "domains")]
    assert [name for name in own if not list(ROOT.glob(f"{name.replace('.', '/')}*"))] == [], "named otherwise now"
    assert [name for name in imported for one in NEEDLESS if f"{name}.".startswith(f"{one}.")] == []
