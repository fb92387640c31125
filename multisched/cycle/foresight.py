"""How far a run may go where pods of a class change what a plugin says of more than their own rows.

Such a plugin says whose answers move with a row that takes a pod, its reach, and up to which row it can foresee the rest
(`ForesightPlugin`). The run then takes at most one row of each reach, and what was foreseen is checked when it is over: the
rows in reach of a pod have fallen behind, and whoever was among the best out of reach is as good as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from multisched.cycle.pod_class import PodClass
from multisched.cycle.pod_run import draw, draw_apart
from multisched.framework.node_view import Bools, Int32, Rows, any_true
from multisched.framework.plugin import ForesightPlugin, Plugin
from multisched.framework.registry import those
from multisched.framework.runner import Runner
from multisched.model.objects import Pod


class Prospect:
    """What is foreseen of one run, and what the class was before it."""

    __slots__ = ("_codes", "_finals", "_scores", "_stamps", "reach", "ties", "total")

    def __init__(self, entry: PodClass, reach: str | None, codes: Int32 | None) -> None:
        self.reach = reach
        self._codes = codes
        """int32[rows]: the domain that a pod on the row reaches; None: its own row at most."""
        self.total = entry.total.copy()
        self.ties: Rows = (self.total == self.total.max()).nonzero()[0]
        self._stamps = entry.stamps
        self._scores = entry.scores
        # Scores of a plugin that reads stamps are renewed into other arrays, normalised ones in place. Where nothing moves
        # nobody asks for them.
        columns = entry.scores if entry.pace.moving else ()
        self._finals = [c.final if c.depends_on.reads_stamp or c.is_plain else c.final.copy() for c in columns]

    def draw(self, turns: Iterable[int], *, keeps: bool) -> list[int]:
        """One of the best rows for each pod."""
        if self._codes is None:
            return draw(self.ties, turns, keeps=keeps and self.reach is None)
        return draw_apart(self.ties, self._codes.take(self.ties), turns)

    def moved_stamps(self, entry: PodClass) -> frozenset[str]:
        """Plugins whose stamps are others now."""
        stamps = self._stamps
        return frozenset(name for name, stamp in entry.stamps.items() if stamp != stamps.get(name))

    def came_true(self, entry: PodClass, chosen: Sequence[int], *, by_feasible: bool) -> bool:
        """False if the answers about rows out of reach may have been others while the run went on."""
        if entry.scores is not self._scores or (by_feasible and int(entry.total.take(chosen).min()) < 0):
            return False  # whoever falls out has a say in the scores of the others, and may have hidden what moved
        is_beyond = self._beyond(chosen)
        ties = self.ties if self.reach is None else self.ties[is_beyond.take(self.ties)]
        if not self._keeps_scores(entry, ties):
            return False
        at = (is_beyond & (self.total != entry.total)).nonzero()[0]
        if not len(at):
            return True
        # Of those that were behind all the while none may have come to pass: they would have had a say, too.
        before, after, best = self.total.take(at), entry.total.take(at), self.total.item(chosen[0])
        return int(before.max()) < best and int(after.max()) < best and not any_true((before < 0) & (after >= 0))

    def worst_cases(self, entry: PodClass, chosen: Sequence[int]) -> list[int]:
        """For each chosen row the largest total in its reach now."""
        if self._codes is None:
            found: list[int] = entry.total.take(chosen).tolist()
            return found
        codes, total = self._codes, entry.total
        return [int(total[codes == code].max()) for code in codes.take(chosen).tolist()]

    def _keeps_scores(self, entry: PodClass, at: Rows) -> bool:
        """Plugin by plugin, those whose scores hang on more than the row score these rows as before."""
        return all(
            column.final is final or column.final.take(at).tobytes() == final.take(at).tobytes()
            for column, final in zip(entry.scores, self._finals, strict=True)
            if column.depends_on.reads_stamp or not column.is_plain
        )

    def _beyond(self, chosen: Sequence[int]) -> Bools:
        """bool[rows]: out of reach of all pods of the run."""
        if self._codes is None:
            is_beyond = np.ones(len(self.total), np.bool_)
            is_beyond[chosen] = False
            return is_beyond
        is_free = np.ones(int(self._codes.max()) + 1, np.bool_)
        is_free[self._codes.take(chosen)] = False
        return is_free.take(self._codes)


class Foresight:
    """The plugins of one domain that can foresee."""

    def __init__(self, plugins: Iterable[Plugin], runner: Runner, label_codes: Callable[[str], Int32]) -> None:
        self._plugins: Mapping[str, ForesightPlugin] = {p.name: p for p in those(plugins, ForesightPlugin)}
        self._runner = runner
        self._label_codes = label_codes

    def begin(self, entry: PodClass, pod: Pod) -> Prospect:
        """Before the pods of a run choose. Raises PluginFailure."""
        plugin = self._speaker(entry)
        reach = None if plugin is None else self._runner.call(plugin, "Foreseen", plugin.reach, entry.view, pod)
        codes = self._label_codes(reach).take(entry.rows) if reach else None
        return Prospect(entry, reach, codes)

    def limit(self, entry: PodClass, pod: Pod, chosen: Sequence[int]) -> int:
        """How many of the chosen rows, from the first, the run may take. Raises PluginFailure."""
        if not entry.pace.moving:
            return len(chosen)
        plugin = self._speaker(entry)
        if plugin is None:
            return 1
        rows = entry.rows.take(chosen)
        return max(1, self._runner.call(plugin, "Foreseen", plugin.foreseen, entry.view, pod, rows))

    def _speaker(self, entry: PodClass) -> ForesightPlugin | None:
        """The plugin whose stamp will move. Of several, none can speak for the run.

        Two scores that move in opposite directions may add up to the same before and after, and to more in between.
        """
        moving = entry.pace.moving
        return self._plugins.get(next(iter(moving))) if len(moving) == 1 else None
