"""The remote requests that plugins send during an attempt, and how the responses change its rows.

The cycle yields the requests and resumes with the responses. All code here works on the attempt's own copy of the rows
(`Choice`), since other cycles renew the class meanwhile.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

import msgspec
import numpy as np

from multisched.cycle.attempt_record import AttemptRecords
from multisched.cycle.classes.cache import ClassCache
from multisched.cycle.classes.columns import Totals
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.classes.score_snapshot import ScoreCopy, ScoreSnapshot
from multisched.cycle.classes.scores import NOWHERE
from multisched.cycle.diagnosis import Diagnosis
from multisched.cycle.effort import RowResults
from multisched.cycle.extender_answers import add_up, recorded, refuse
from multisched.cycle.preemption.post_filter import PostFilterRuns
from multisched.cycle.preemption.victim_units import gangs_are_spared
from multisched.cycle.results import RemoteRequest
from multisched.framework.extender import ExtenderPlugin, NegotiablePostFilter, Offer
from multisched.framework.node_view import Bools, Int64, Rows, Scores, any_true
from multisched.framework.points import CycleView, PostFilterResult
from multisched.framework.registry import PluginSet
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows


class Choice(msgspec.Struct):
    """The rows as one attempt sees them: a copy if the cycle waits, otherwise the arrays of the class itself."""

    rows: Rows
    feasible: Bools
    total: Totals
    versions: Int64 | None = None
    outranking_weight: int = 0
    """Factor of the outranking plugin's scores in `total`, if it differs from the profile's factor."""
    answered: list[ScoreCopy] = msgspec.field(default_factory=list)
    """Scores of plugins with remote requests."""


class RemoteResponses:
    """Requests and responses of one domain's plugins. Keeps nothing between attempts."""

    def __init__(
        self,
        plugins: PluginSet,
        runner: Runner,
        cache: ClusterCache,
        rows: DomainRows,
        classes: ClassCache,
        records: AttemptRecords,
        post_filters: PostFilterRuns,
    ) -> None:
        self._plugins = plugins
        self._runner = runner
        self._cache = cache
        self._rows = rows
        self._classes = classes
        self._records = records
        self._post_filters = post_filters

    @property
    def are_any(self) -> bool:
        """True if some plugin may have remote requests."""
        return bool(self._plugins.remote)

    def requests(self, pod_class: EquivalenceClass, pod: Pod) -> list[RemoteRequest]:
        """Returns the remote requests of all plugins, about the feasible rows."""
        if not self._plugins.remote:
            return []
        asked = []
        rows = pod_class.rows[pod_class.feasible]
        for plugin in self._plugins.remote:
            request = self._runner.call(plugin, "Request", plugin.request, pod_class.view, pod, rows)
            if request is not None:
                asked.append(RemoteRequest(plugin, request))
        return asked

    @staticmethod
    def settled(asked: Sequence[RemoteRequest], answers: Mapping[str, object | PluginFailure]) -> Mapping[str, object]:
        """Returns the responses. Raises PluginFailure for the first that failed."""
        for one in asked:
            answer = answers.get(one.plugin.name)
            if isinstance(answer, PluginFailure):
                raise answer
        return answers

    def drop_removed_rows(self, choice: Choice, generation: int) -> bool:
        """Clears rows whose node was removed or replaced by another during the wait. Returns False if no row is left."""
        if generation != self._rows.generation:
            choice.feasible &= self._rows.stayed_since(choice.rows, generation)
            choice.total[~choice.feasible] = NOWHERE
        return any_true(choice.feasible)

    def refuse(self, choice: Choice, view: CycleView, pod: Pod) -> list[tuple[str, Status]]:
        """Runs Filter of the plugins that sent requests over the feasible rows. Returns the nodes that these plugins refused."""
        refused: list[tuple[str, Status]] = []
        for plugin in self._plugins.remote_filter:
            if plugin.name in view.responses:
                at = np.flatnonzero(choice.feasible)
                codes = self._runner.filter(plugin, view, pod, choice.rows[at])
                for position in np.flatnonzero(codes).tolist():
                    row = int(choice.rows[at[position]])
                    refused.append((self._cache.nodes.node(row).name, plugin.reasons.status(int(codes[position]))))
                choice.feasible[at[codes != 0]] = False
        for judge in self._plugins.extenders:
            if judge.name in view.responses:
                late = refuse(self._runner, judge, view, pod, choice.rows, choice.feasible)
                refused += [
                    (self._cache.nodes.node(int(choice.rows[position])).name, status) for position, status in late
                ]
        choice.total[~choice.feasible] = NOWHERE
        return refused

    def rescore(self, choice: Choice, pod_class: EquivalenceClass) -> ScoreSnapshot | None:
        """Scores again over the rows that the responses left: upstream scores and normalises after asking extenders.

        Returns None, and keeps the earlier scores, if nodes were added or removed meanwhile.
        """
        if pod_class.generation != self._rows.generation or not np.array_equal(pod_class.rows, choice.rows):
            return None
        fewer = self._classes.reduced(pod_class, choice.feasible.copy())
        self._classes.score(fewer)
        choice.total = np.where(choice.feasible, fewer.total, NOWHERE).astype(np.int64)
        return self._records.snapshot(fewer)

    def add_scores(self, choice: Choice, view: CycleView, pod: Pod) -> None:
        """Adds the scores of the plugins that sent requests."""
        for scorer in self._plugins.remote_score:
            if scorer.name in view.responses:
                at = np.flatnonzero(choice.feasible)
                scores = self._runner.score(scorer, view, pod, choice.rows[at])
                normalizer = self._plugins.normalize.get(scorer.name)
                if normalizer is not None:
                    scores = self._runner.normalize(normalizer, view, pod, scores)
                else:
                    self._runner.check_range(scorer, scores)
                choice.total[at] += self._plugins.weight(scorer) * scores
                final = np.zeros(len(choice.rows), np.uint8)
                final[at] = scores
                choice.answered.append(ScoreCopy(scorer.name, self._plugins.weight(scorer), final))
        ranks = self._without_ranks(choice)
        for judge in self._plugins.extenders:
            if judge.name in view.responses:
                before = choice.total
                choice.total = add_up(self._runner, judge, view, pod, choice.rows, choice.feasible, before)
                choice.answered += recorded(judge.name, before, choice.total, choice.feasible)
        if ranks is not None:
            self._add_ranks(choice, ranks)

    def _without_ranks(self, choice: Choice) -> Scores | None:
        """Removes the outranking plugin's part from the totals, so that extenders, whose scores have no limit, add to the rest only.

        Returns its scores, int64[rows]; None if no extender may add.
        """
        if self._plugins.outranking is None or not self._plugins.extenders:
            return None
        ranks: Scores = choice.total.astype(np.int64) // self._plugins.outranking_weight
        choice.total = np.where(choice.feasible, choice.total - ranks * self._plugins.outranking_weight, NOWHERE)
        return ranks

    def _add_ranks(self, choice: Choice, ranks: Scores) -> None:
        """Adds the outranking plugin's part again, with a factor above the largest sum of all others."""
        unit = max(self._plugins.outranking_weight, int(choice.total.max(initial=0)) + 1)
        choice.outranking_weight = unit
        choice.total = np.where(choice.feasible, choice.total + ranks * unit, NOWHERE)

    def negotiate(
        self,
        pod_class: EquivalenceClass,
        view: CycleView,
        pod: Pod,
        found: Diagnosis,
        results: RowResults,
        settled: dict[str, PostFilterResult],
    ) -> Generator[Sequence[RemoteRequest], Mapping[str, object | PluginFailure], None]:
        """Sends preemption candidates to the extenders that take part, and adds the results to `settled` by plugin.

        Raises PauseDue if the attempt must pause. After that it must be called again, and continues with other plugins.
        """
        judge = next((one for one in self._plugins.extenders if one.negotiates(pod)), None)
        if judge is None:
            return
        for plugin, offers in self._post_filters.offers(pod, view, pod_class, found, results, settled):
            if isinstance(offers, PostFilterResult):
                settled[plugin.name] = offers
                continue
            request = self._runner.call(judge, "Request", judge.preemption_request, view, pod, offers)
            answers = yield [RemoteRequest(judge, request)]
            settled[plugin.name] = self._settle(judge, plugin, view, pod, offers, answers.get(judge.name))

    def _settle(
        self,
        judge: ExtenderPlugin,
        plugin: NegotiablePostFilter,
        view: CycleView,
        pod: Pod,
        offers: Sequence[Offer],
        answer: object,
    ) -> PostFilterResult:
        """Returns the PostFilter result after the extenders responded or failed.

        Leaves out candidates with victims that their gangs cannot spare: an extender may have chosen other victims, and other
        preemptions may have taken members meanwhile.
        """
        runner = self._runner
        try:
            if isinstance(answer, PluginFailure):
                return runner.call(plugin, "PostFilter", plugin.on_extender_failure, answer.status.message)
            # No response (a sandbox sends no requests): the candidates stay as they are.
            left = (
                offers
                if answer is None
                else runner.call(judge, "PostFilter", judge.remaining_offers, view, offers, answer)
            )
            sparing = [one for one in left if gangs_are_spared(one.victims, self._cache.gangs)]
            return runner.call(plugin, "PostFilter", plugin.accept, pod, sparing)
        except PluginFailure as failure:
            return PostFilterResult(failure.status)
