"""What `multisched run` has imported when it asks for its first list: nothing that no start of this kind needs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import multisched
from tests.perf.start_bench import imports_ms

NEEDLESS: Final = {
    "cryptography": "the server speaks no TLS",
    "typer": "the command line is correct",
    "pydantic": "the configuration is read with msgspec",
    "kubernetes_asyncio.client.configuration": "its loaders fill in settings of ours",
    "kubernetes_asyncio.client.rest": "session and TLS are ours",
    "multiprocessing": "nothing is isolated",
    "rich": "it logs JSON",
    "urllib3": "short requests and watches have their clients",
    "domains.forecast.commands": "nobody asks for a command",
    "multisched.forecasting.fit": "the shipped forecast learns nothing",
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
NEEDED: Final = {"aiohttp", "numpy", "msgspec", "multisched.shell.program"}
"""Some that are there by then."""
ROOT: Final = Path(multisched.__file__).parents[1]


async def test_run_imports_only_what_the_first_list_needs(tmp_path: Path) -> None:
    imported = set(await imports_ms(tmp_path))
    assert imported >= NEEDED
    own = [name for name in NEEDLESS if name.partition(".")[0] in ("multisched", "domains")]
    assert [name for name in own if not list(ROOT.glob(f"{name.replace('.', '/')}*"))] == [], "named otherwise now"
    assert [name for name in imported for one in NEEDLESS if f"{name}.".startswith(f"{one}.")] == []
