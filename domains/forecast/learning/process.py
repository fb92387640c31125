"""The part of the refit that runs in the background process: owns the `LearningRun` and its sources.

Imported only in that process.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from domains.forecast.curves.node_usage import LoadRequest, MeasuredLoads
from domains.forecast.learning.learned import LearningTask, keep, learn
from domains.forecast.learning.learning_run import LearningRefusal, LearningRequest, LearningResult, LearningRun
from domains.forecast.learning.opening import open_history
from domains.forecast.service_names import PodName
from multisched.framework.background import ProcessPorts


class LearningAssistant:
    """Implements `framework.background.Assistant`: answers a LearningRequest with a LearningResult, a LoadRequest with MeasuredLoads, and
    either with a LearningRefusal if a source fails.
    """

    def __init__(self, lesson: LearningTask, ports: ProcessPorts) -> None:
        """Raises PluginArgsError for certificates that became unusable since program start."""
        history = lesson.settings.history
        assert history is not None, "no history is configured"
        self._in_thread = ports.in_thread
        self._pods: Mapping[PodName, str] = {}
        sources = {
            index: open_history(one, history, ports.meters, self._known) for index, one in lesson.sources.items()
        }
        self._study = LearningRun(sources, partial(learn, lesson.settings), partial(keep, lesson.settings))

    async def answer(self, question: LearningRequest | LoadRequest) -> LearningResult | MeasuredLoads | LearningRefusal:
        if isinstance(question, LoadRequest):
            return await self._study.look(question)
        self._pods = question.pods
        return await self._study.run(question, self._in_thread)

    async def _known(self) -> Mapping[PodName, str]:
        return self._pods


def learning_assistant(settings: LearningTask, ports: ProcessPorts) -> LearningAssistant:
    """Creates the assistant; called in the background process."""
    return LearningAssistant(settings, ports)
