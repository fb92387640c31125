"""People who ask what would be: whoever asks changes nothing."""

from __future__ import annotations

from multisched.testing.disruptions.scene import Disruption, Scene
from multisched.testing.questions import Questions


async def _ask(scene: Scene) -> bool:
    """One process after the other, in the middle of whatever they do."""
    for process in list(scene.run.processes):
        if process.identity not in scene.run.disturbed:
            await Questions(scene.run, process).ask()
    return True


TABLE = (Disruption("questions asked", _ask, 3),)
