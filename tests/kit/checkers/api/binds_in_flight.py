"""The bindings that processes have sent: which may still take effect, and which await a response (I2, I8, I10)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from multisched.config.schema import Configuration
from multisched.model.objects import Pod
from multisched.model.wire import Response
from tests.kit.world.policies import is_unsure

SETTLING = (200, 201, 404, 409)
"""Status codes after which no earlier binding of the pod can take effect."""


@dataclass(slots=True)
class _Post:
    """One binding that was sent."""

    sender: str
    node: str
    sent_s: float
    deadline_s: float
    """The server drops the request at this time."""
    is_definite: bool = False


class BindsInFlight:
    """The bindings of all processes."""

    def __init__(
        self,
        configuration: Configuration,
        now_s: Callable[[], float],
        report_violation: Callable[[str], None],
        cannot_know: Callable[[str, str], bool],
    ) -> None:
        """`cannot_know`: reports whether one of two processes cannot know what the other one does."""
        self._now_s = now_s
        self._report_violation = report_violation
        self._cannot_know = cannot_know
        self._binds_max = _binds_max(configuration)
        self._posts: dict[str, list[_Post]] = {}
        self._open: dict[tuple[str, str], str] = {}
        """(sender, uid) -> domain of each binding that awaits a response."""
        self._lied_about: set[str] = set()
        """uids of pods whose next bind response is false."""

    def may_send(self, configuration: Configuration) -> None:
        """Allows as many binds in flight as this configuration does, from now on: it may come into force."""
        for domain, most in _binds_max(configuration).items():
            self._binds_max[domain] = max(most, self._binds_max[domain])

    def is_first(self, sender: str, uid: str) -> bool:
        """Reports whether no binding that the sender has sent for the pod can still take effect."""
        return not any(post.sender == sender and not post.is_definite for post in self._posts.get(uid, ()))

    def sent(self, sender: str, key: str, uid: str, node: str, timeout_s: float) -> None:
        """Checks I2: while an earlier POST may still take effect, only its node may be tried again."""
        now_s = self._now_s()
        posts = [post for post in self._posts.get(uid, ()) if not post.is_definite and post.deadline_s > now_s]
        for post in posts:
            if post.node != node and not self._cannot_know(sender, post.sender):
                age_s = now_s - post.sent_s
                self._report_violation(
                    f"I2: {key} was sent to {node} while its fate on {post.node} was unknown ({age_s:.1f} s)"
                )
        self._posts[uid] = [*posts, _Post(sender, node, now_s, now_s + timeout_s)]

    def check_alone(self, sender: str, key: str, node: str, bound: Mapping[str, str]) -> None:
        """Checks I8: no process binds to a node while another process may still be binding to it. `bound`: uid -> node of bindings
        that took effect.
        """
        now_s = self._now_s()
        for uid, posts in self._posts.items():
            for post in posts:
                is_live = not post.is_definite and post.deadline_s > now_s and bound.get(uid) != node
                is_others = post.node == node and post.sender != sender
                if is_others and is_live and not self._cannot_know(sender, post.sender):
                    self._report_violation(
                        f"I8: {sender} sent {key} to {node}, to which {post.sender} may be binding {uid}"
                    )
                    return

    def opened(self, sender: str, uid: str, domain: str) -> None:
        """Checks I10: the number of bindings in flight is bounded."""
        self._lied_about.discard(uid)  # it was about an earlier bind, of a process that has ended
        self._open[sender, uid] = domain
        on_wire = sum(at[0] == sender and of == domain for at, of in self._open.items())
        if on_wire > self._binds_max[domain]:
            self._report_violation(f"I10: {on_wire} bindings of {domain} on the wire")

    def answered(self, sender: str, uid: str, answer: Response | None) -> None:
        """Records the response that the sender received; None if it was lost, or if the sender has ended."""
        posts = [post for post in self._posts.get(uid, ()) if post.sender == sender]
        is_true = uid not in self._lied_about
        self._lied_about.discard(uid)
        if answer is not None and not is_unsure(answer) and is_true:
            # A refusal of one binding does not decide earlier ones, which may be in flight.
            for post in posts if answer.status in SETTLING else posts[-1:]:
                post.is_definite = True
        self._open.pop((sender, uid), None)

    def faked(self, uid: str) -> None:
        """Records a false response: it does not decide any earlier binding of the pod."""
        self._posts[uid] = self._posts.get(uid, [])[:-1]
        self._lied_about.add(uid)

    def check_forgotten(self, sender: str, pod: Pod, *, is_external: bool) -> None:
        """Checks I2 when a process forgets a pod: the pod is not bound there, and no binding in flight can bind it.

        `is_external`: another client has bound it.
        """
        for post in self._posts.get(pod.uid, ()):
            is_live = not post.is_definite and post.deadline_s > self._now_s() and not pod.node
            is_bound = pod.node == post.node and not is_external
            if post.sender == sender and (is_live or is_bound):
                how = "it is bound there" if is_bound else "its fate is unknown"
                self._report_violation(f"I2: {sender} gave {pod.key} up on {post.node}, and {how}")
                return

    def is_open(self, sender: str, uid: str) -> bool:
        return (sender, uid) in self._open

    def open_count(self, sender: str, domains: Collection[str]) -> int:
        """Returns the number of bindings of these domains in flight."""
        return sum(at[0] == sender and domain in domains for at, domain in self._open.items())

    def is_bound_to(self, node: str) -> bool:
        """Reports whether a binding to the node is in flight."""
        return any(self._posts[uid][-1].node == node for _, uid in self._open if self._posts.get(uid))

    def forget(self) -> None:
        """Forgets all bindings: a backup was restored."""
        self._posts.clear()


def _binds_max(configuration: Configuration) -> dict[str, int]:
    domains = configuration.domains
    return {d.name: d.concurrency.binds.max for d in domains}
