"""The API server's bind checker in a simulation: every binding as it is sent, takes effect and is answered; every lease written.

What `ApiChecker` checks of a binding's effect is not enough where the server refuses what should never have been asked, or
where two processes compete: here a binding is judged as it leaves its process (I2, I7, I8, I9, I10).
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import orjson

from multisched.cluster.api.server import ApiServer
from multisched.cluster.api.watch import WatchStream
from multisched.cluster.base.request import ApiRequest
from multisched.config.nodes import lease_groups
from multisched.config.schema import Configuration
from multisched.model.objects import PODS, Node, Pod
from multisched.model.selectors import NO_EXECUTE, NO_SCHEDULE
from multisched.model.version import is_covered, version_of
from multisched.model.wire import Response
from multisched.testing.checkers.api.api_checker import ApiChecker, decision_of, pod_of, target_of
from multisched.testing.checkers.api.bind_judge import NEWS_S, SHARED, BindJudge
from multisched.testing.checkers.api.stale_decisions import Decision, fault_of_neighbours, fault_of_strangers
from multisched.testing.checkers.told import Ground, Homes, Told
from multisched.testing.rules.devices import fits_for_certain
from multisched.testing.rules.inter_pod import Standing, allows, clash
from multisched.testing.rules.node_affinity import wants
from multisched.testing.world.policies import Policies, is_unsure

PRIORITY_MAX = 2_000_001_000
"""Of pods that are critical for their node."""
TELL_ALL = (200, 201, 404, 409)
"""Answers to a binding that settle all that was sent for the pod."""
RECORDED_S = 0.000_001
"""What a lease's record may leave out of the time at which it was renewed."""
JUST_AFTER_S = 0.001
"""No renewal is answered as soon as that."""
SCHEDULED = "PodScheduled"
UNREADABLE = "the pod cannot be scheduled: "
"""Begins what the owner of a pod is told who has made it one that is not read any more: true whatever becomes of its bind."""
_LEASE = re.compile(r"/leases(?:/([^/?]+))?(?:\?|$)")


@dataclass(slots=True)
class _Post:
    """One binding that left a process."""

    sender: str
    node: str
    sent_s: float
    deadline_s: float
    """The server drops it then."""
    is_definite: bool = False


@dataclass(slots=True)
class _Term:
    """One holding of a lease, from the server's own answers."""

    holder: str
    bind_from_s: float
    renewed_s: float
    """The record's own renewTime, on the common clock."""
    is_known_by_pods: bool = False
    """Its holder never heard of a lease before it; only pods of ours that stand tell it that there was one."""


@dataclass(slots=True)
class _Deleted:
    """A lease that somebody deleted."""

    holder: str
    """Its last one, which may bind without having heard of it."""
    until_s: float
    known_to: Collection[str]
    """Processes that were told of it. One that was not cannot tell it from a lease that never was."""
    before: _Deleted | None
    """Of the same lease, where its last holder did not yet bind by it, since that one might."""

    def may_lead_on(self, sender: str, now_s: float) -> bool:
        """It held the lease, and need not have heard of the deletion: whoever makes the lease anew waits for that moment."""
        if self.holder == sender and now_s < self.until_s:
            return True
        return self.before is not None and self.before.may_lead_on(sender, now_s)


class BindChecker(ApiChecker):
    """ApiChecker that also know the configuration, the time, and who sent what."""

    def __init__(
        self,
        server: ApiServer,
        configuration: Configuration,
        now_s: Callable[[], float],
        broken: list[str],
        policies: Policies,
        news_s: Callable[[], float] = lambda: NEWS_S,
    ) -> None:
        super().__init__(server, broken)
        self.policies = policies
        self._now_s = now_s
        self._homes = Homes(configuration)
        self._groups = lease_groups(configuration)
        self._has_leases = configuration.lease.enabled
        self._lease_prefix = configuration.lease.name_prefix
        self._renew_deadline_s = configuration.lease.renew_deadline_s
        self.renew_deadlines_s: dict[str, float] = {}
        """Process -> how long after a renewal it may bind, where its configuration is another one."""
        self._bind_deadline_s = configuration.client.bind_timeout_s
        self._binds_max = {
            d.name: min(d.concurrency.bind_workers, d.concurrency.max_in_flight_binds) for d in configuration.domains
        }
        self._domain_of = {name: d.name for d in configuration.domains for name in d.scheduler_names}
        self.policy_tolerations = {d.name: d.policy.compile() for d in configuration.domains}
        self._posts: dict[str, list[_Post]] = {}
        self._open: dict[tuple[str, str], str] = {}
        """(sender, uid) -> domain of each binding that waits for its answer."""
        self._placed_by: dict[str, tuple[str, str]] = {}
        """uid -> (process, group of domains) that sent its latest binding."""
        self._terms: dict[str, _Term] = {}
        self._deleted: dict[str, _Deleted] = {}
        """By name of the lease."""
        self._lease_readers: defaultdict[str, set[str]] = defaultdict(set)
        """Lease -> the processes that were ever told of it."""
        self._unaware: dict[str, float] = {}
        """Processes that took a lease which had been deleted before they were told of it -> when the last bind by it is over."""
        self._lied_about: set[str] = set()
        """uids of pods of whose bind the next answer is false."""
        self.misled_about: set[str] = set()
        """Nodes of which some process was told that a pod of theirs is elsewhere, or could not know that others bind to it."""
        self._strangers: set[str] = set()
        """uids of pods that somebody else bound."""
        self.told: dict[str, Told] = {}
        """Sender -> what it has been told."""
        self._grounds: dict[tuple[str, str], Ground] = {}
        """(uid, node) -> what the last binding of the pod to the node was decided on."""
        self._decided = 0
        self.believers: dict[str, Callable[[str], bool]] = {}
        """Sender -> whether it believes that it may bind for a domain now."""
        self._deadlines: set[str] = set()
        """Leases at whose end somebody will look."""
        self._order: dict[str, int] = {}
        """uid -> the place of its latest decision among all."""
        self._judge = BindJudge(server, configuration, now_s, self, news_s)
        server.interceptors.append(_WriteLog(self))

    # -- as a binding leaves its process ---------------------------------------------------------------------------

    def bind_sent(self, sender: str, path: str, body: bytes) -> None:
        """I2, I7, I9 and I10, whatever the server will say to it."""
        self._judge.follow()
        key, timeout_s = target_of(path)
        uid, node = decision_of(body)
        is_first = not any(post.sender == sender and not post.is_definite for post in self._posts.get(uid, ()))
        self._check_same_node(sender, key, uid, node, timeout_s)
        self._check_alone(sender, key, node)
        pod = self.pods().get(key)
        if pod is None or pod.uid != uid:
            return  # it was deleted a moment ago
        domain = self._domain_of.get(pod.spec.scheduler_name)
        if domain is None:
            self.complain(f"I7: a binding was sent for {key} of {pod.spec.scheduler_name}")
            return
        told = self.told.get(sender)
        if pod.gates and (told is None or uid not in told.pods or told.pods[uid].gates):
            self.complain(f"I7: a binding was sent for {key}, which is gated")
        self._check_lease(sender, domain, f"a binding for {key}")
        if told is not None:
            self._grounds[uid, node] = told.ground(sender, pod, node)
            # Of a pod that is bound there already the sender asks for an answer, and changes nothing.
            fault = (
                told.fault_of_bind(pod, domain, node) or self._fault_of_company(told, pod, domain, node)
                if is_first and pod.node != node
                else ""
            )
            if fault:
                self.complain(f"I8: {sender} sent {key} to {node}, {fault}")
        if self._is_unaware(sender):
            self.misled_about.add(node)
        self._lied_about.discard(uid)  # that was about an earlier one, of a process that has ended
        self._open[sender, uid] = domain
        self._placed_by[uid] = (sender, self._groups[domain])
        on_wire = sum(at[0] == sender and of == domain for at, of in self._open.items())
        if on_wire > self._binds_max[domain]:
            self.complain(f"I10: {on_wire} bindings of {domain} on the wire")

    def _fault_of_company(self, told: Told, pod: Pod, domain: str, node: str) -> str:
        """What others have done since the sender decided, as it was told, that forbids to send; empty for nothing."""
        decided_on, chosen = self._grounds[pod.uid, node].pods, told.chosen(pod.uid)
        fault = fault_of_neighbours(told, pod, node)
        if fault or chosen is None:
            return fault
        return fault_of_strangers(told, pod, domain, node, Decision(decided_on, chosen), self._strangers)

    def bind_answered(self, sender: str, body: bytes, answer: Response | None) -> None:
        """What the sender learned; nothing, if the answer was lost or the sender is gone."""
        uid, _ = decision_of(body)
        posts = [post for post in self._posts.get(uid, ()) if post.sender == sender]
        is_true = uid not in self._lied_about
        self._lied_about.discard(uid)
        if answer is not None and not is_unsure(answer) and is_true:
            # A refusal of one says nothing of those before it, which may be on their way.
            for post in posts if answer.status in TELL_ALL else posts[-1:]:
                post.is_definite = True
        self._open.pop((sender, uid), None)
        self._judge_refusal(sender, uid, answer)

    def claim_answered(self, sender: str, path: str, answer: Response) -> None:
        uid = self.policies.uid_of_claimant(path)
        if uid:
            self._judge_refusal(sender, uid, answer)

    def status_sent(self, sender: str, body: bytes) -> None:
        """I3: an owner is told the latest, and nothing that was true before while the pod's bind is on the wire."""
        document = orjson.loads(body)
        conditions = document.get("status", {}).get("conditions") or ()
        message = next((str(one.get("message")) for one in conditions if one.get("type") == SCHEDULED), None)
        uid = str(document.get("metadata", {}).get("uid"))
        said = self.told[sender].said.get(uid) if sender in self.told else None
        if message is None or said is None:
            return
        if message != said:
            self.complain(f"I3: {sender} tells the owner of {uid} {message[:60]!r}, after {said[:60]!r}")
        elif (sender, uid) in self._open and not message.startswith(UNREADABLE):
            self.complain(f"I3: {sender} tells the owner of {uid} {message[:60]!r} while it is being bound")

    def _judge_refusal(self, sender: str, uid: str, answer: Response | None) -> None:
        """I10: attempts at what the server always refuses are bounded."""
        fault = self.policies.answered(sender, uid, answer)
        if fault:
            self.complain(f"I10: {sender} tried {uid} again: {fault}")

    def _check_same_node(self, sender: str, key: str, uid: str, node: str, timeout_s: float) -> None:
        """I2: while an earlier POST may still take effect, only its own node is asked for again."""
        now_s = self._now_s()
        posts = [post for post in self._posts.get(uid, ()) if not post.is_definite and post.deadline_s > now_s]
        for post in posts:
            if post.node != node and self._may_know(sender, post):
                age_s = now_s - post.sent_s
                self.complain(f"I2: {key} was sent to {node} while its fate on {post.node} was unknown ({age_s:.1f} s)")
        self._posts[uid] = [*posts, _Post(sender, node, now_s, now_s + timeout_s)]

    def given_up(self, sender: str, uid: str) -> None:
        """I2: the sender gives back what a pod holds; certainly it is not bound there, and will not be by what was sent."""
        pod = next((pod for pod in self.pods().values() if pod.uid == uid), None)
        if pod is None or pod.is_deleting or self.was_rewound:
            return
        for post in self._posts.get(uid, ()):
            is_live = not post.is_definite and post.deadline_s > self._now_s() and not pod.node
            is_bound = pod.node == post.node and uid not in self._strangers
            if post.sender == sender and (is_live or is_bound):
                how = "it is bound there" if is_bound else "its fate is unknown"
                self.complain(f"I2: {sender} gave {pod.key} up on {post.node}, and {how}")
                return

    def _check_alone(self, sender: str, key: str, node: str) -> None:
        """I8: nobody binds to a node while another process may still be binding to it."""
        now_s = self._now_s()
        for uid, posts in self._posts.items():
            for post in posts:
                is_live = not post.is_definite and post.deadline_s > now_s and self.bound.get(uid) != node
                if post.node == node and post.sender != sender and is_live and self._may_know(sender, post):
                    self.complain(f"I8: {sender} sent {key} to {node}, to which {post.sender} may be binding {uid}")
                    return

    def _may_know(self, sender: str, post: _Post) -> bool:
        """There was a lease to tell the sender that another process may be binding."""
        return post.sender == sender or not self._is_unaware(sender, post.sender)

    def _is_unaware(self, *senders: str) -> bool:
        """One of them cannot know that binds of another may be on their way still."""
        now_s = self._now_s()
        return any(now_s < self._unaware.get(sender, now_s) for sender in senders)

    def _domains_at(self, sender: str, pod: Pod) -> list[str]:
        """The pod's own domain, and those that may use its node as the sender was told of it."""
        own = self._domain_of.get(pod.spec.scheduler_name)
        told = self.told.get(sender)
        node = told.nodes.get(pod.node) if told is not None else self.nodes().get(pod.node)
        found = [own] if own is not None else []
        return found + [d for d in self._groups if d != own and node is not None and self._homes.usable_by(d)(node)]

    def _has_ours(self) -> bool:
        """Some pod of our schedulers stands on a node."""
        pods = (pod for pod in self.pods().values() if pod.node and not pod.is_terminal)
        return any(pod.spec.scheduler_name in self._domain_of for pod in pods)

    def _check_lease(self, sender: str, domain: str, what: str) -> None:
        fault = self._fault_of_lease(sender, domain)
        if fault:
            self.complain(f"I9: {sender} sent {what} {fault}")

    def _fault_of_lease(self, sender: str, domain: str) -> str:
        """I9, by the lease as the server has it: held by the sender, not past its deadline, and waited for; empty if it is."""
        if not self._has_leases:
            return ""
        name = self.lease_of(domain)
        term, now_s = self._terms.get(name), self._now_s()
        deleted = self._deleted.get(name)
        if term is not None and deleted is not None and term.holder != sender and deleted.may_lead_on(sender, now_s):
            return ""
        if term is None or term.holder != sender:
            held_by = term.holder if term is not None else "nobody"
            return f"while {held_by} held the lease of {domain}"
        if now_s >= term.renewed_s + self._may_bind_s(sender) + RECORDED_S:
            return f"{now_s - term.renewed_s:.2f} s after it renewed the lease"
        if now_s < term.bind_from_s:
            return f"{term.bind_from_s - now_s:.2f} s before the last leader's binds had run out"
        return ""

    def victim_sent(self, sender: str, path: str) -> None:
        """Who preempts leads (I9), and nobody goes for a pod that is no more urgent than itself.

        It leads the victim's domain, or one that may use the node on which the victim stands: nodes move between domains.
        """
        victim = self.pods().get(pod_of(path))
        if victim is None:
            return  # it went a moment ago
        domains = self._domains_at(sender, victim)
        faults = [self._fault_of_lease(sender, domain) for domain in domains]
        if faults and all(faults):
            self.complain(f"I9: {sender} sent the deletion of {victim.key} {faults[0]}")
        if victim.spec.priority >= PRIORITY_MAX:
            self.complain(f"I7: {sender} asked {victim.key} to go, than which no pod is more urgent")

    def lease_written(self, name: str, holder: str, renewed_s: float) -> None:
        now_s = self._now_s()
        if name not in self._deadlines:
            self._look_at_deadline(name, renewed_s + self._may_bind_s(holder))
        term = self._terms.get(name)
        if term is not None and term.holder == holder:
            term.renewed_s = renewed_s
            return
        after_expiry = term is not None and bool(term.holder) and bool(holder)
        if term is not None and not holder:
            self._check_released(name, term.holder)
            self._forget_deleted(name, term.holder)
        wait_s = self._bind_deadline_s if after_expiry else 0.0
        deleted = self._deleted.get(name)
        last_s = deleted.until_s if deleted is not None else 0.0
        bind_from_s = max(now_s + wait_s, last_s)
        is_known_by_pods = deleted is not None and bool(holder) and holder not in deleted.known_to
        if is_known_by_pods:
            # Nothing tells it how long the lease lasted that it did not find, or, where no pod of ours stands, that there was one.
            known_s = now_s + (self._may_bind_s(holder) + self._bind_deadline_s if self._has_ours() else 0.0)
            if known_s < last_s + self._bind_deadline_s:
                # What was sent in the last moment may still be on its way then.
                self._unaware[holder] = max(last_s + self._bind_deadline_s, self._unaware.get(holder, 0.0))
            bind_from_s = min(bind_from_s, known_s)
        if deleted is not None and deleted.before is not None and deleted.before.may_lead_on(holder, now_s):
            bind_from_s = now_s  # it never stopped leading
        self._terms[name] = _Term(holder, bind_from_s, renewed_s, is_known_by_pods)
        self.look_at_leases()

    def _forget_deleted(self, name: str, holder: str) -> None:
        """Who held the lease that was deleted has made it anew and given it back: it binds by neither."""
        deleted = self._deleted.get(name)
        if deleted is None or deleted.holder != holder:
            return
        if deleted.before is not None:
            self._deleted[name] = deleted.before
        else:
            del self._deleted[name]

    def lease_deleted(self, name: str) -> None:
        term = self._terms.get(name)
        if term is not None and term.holder:
            until_s = term.renewed_s + self._may_bind_s(term.holder)
            before = self._deleted.get(name) if self._now_s() < term.bind_from_s else None
            self._deleted[name] = _Deleted(term.holder, until_s, frozenset(self._lease_readers[name]), before)

    def lease_read(self, sender: str, path: str) -> None:
        self._lease_readers[path.rpartition("/")[2].partition("?")[0]].add(sender)

    def leases_of(self, sender: str) -> list[str]:
        """Names of the leases that it holds."""
        return [name for name, term in self._terms.items() if term.holder == sender]

    def _may_bind_s(self, holder: str) -> float:
        """How long after it renewed a lease."""
        return self.renew_deadlines_s.get(holder, self._renew_deadline_s)

    def _look_at_deadline(self, name: str, until_s: float) -> None:
        """Asks right after the moment when nobody may bind by the lease any more."""
        self._deadlines.add(name)
        asyncio.get_running_loop().call_at(until_s + JUST_AFTER_S, self._at_deadline, name)

    def _at_deadline(self, name: str) -> None:
        self._deadlines.discard(name)
        self.look_at_leases()
        term = self._terms.get(name)
        until_s = term.renewed_s + self._may_bind_s(term.holder) if term is not None else 0.0
        if until_s > self._now_s():
            self._look_at_deadline(name, until_s)

    def look_at_leases(self) -> None:
        """I9, whether anything is sent or not: who believes that it may bind, may."""
        for term in self._terms.values():
            if term.is_known_by_pods and not self._has_ours():  # they have ended, maybe before its holder listed
                term.bind_from_s = min(term.bind_from_s, self._now_s())
                term.is_known_by_pods = False
        for sender, may_bind in self.believers.items():
            for domain in self._groups:
                fault = self._fault_of_lease(sender, domain) if may_bind(domain) else ""
                if fault:
                    self.complain(f"I9: {sender} believes that it may bind for {domain}, {fault}")

    def bound_pods(self) -> list[Pod]:
        """Those that were bound by processes of ours, as the store has them; none where it was restored."""
        ours = self._placed_by.keys() - self._strangers if not self.was_rewound else set()
        return [pod for pod in self.pods().values() if pod.uid in ours and pod.node and not pod.is_terminal]

    def _check_released(self, name: str, sender: str) -> None:
        """I11: a lease is given back when no binding is on the wire, since its successor does not wait."""
        domains = {domain for domain, group in self._groups.items() if name == f"{self._lease_prefix}-{group}"}
        open_here = sum(at[0] == sender and domain in domains for at, domain in self._open.items())
        if open_here:
            self.complain(f"I11: {sender} gave {name} back with {open_here} bindings on the wire")

    def lease_of(self, domain: str) -> str:
        """Its name."""
        return f"{self._lease_prefix}-{self._groups[domain]}"

    def leases(self) -> Set[str]:
        """Names of all leases by which somebody may bind."""
        return {self.lease_of(domain) for domain in self._groups}

    def is_bound_to(self, node: str) -> bool:
        """A binding to the node is on the wire."""
        return any(self._posts[uid][-1].node == node for _, uid in self._open if self._posts.get(uid))

    def holds_lease(self, sender: str) -> bool:
        return any(term.holder == sender for term in self._terms.values())

    # -- as a binding takes effect ---------------------------------------------------------------------------------

    def bind_seen(self, path: str, body: bytes, answer: Response) -> None:
        """What the books check, every required rule by the judge, and I8 where nothing tells what the sender knew.

        Rules that hang on pods which are on their way are judged where each pod is assumed, by what was told (`ProcessChecker`).
        """
        super().bind_seen(path, body, answer)
        pod = self.pods().get(target_of(path)[0])
        if answer.status != 201 or pod is None:
            return
        name = decision_of(body)[1]
        ground, node = self.ground_of(pod.uid, name), self.nodes().get(name)
        if ground is None:
            self._check_domain(pod, name)
        elif node is not None and ground.mistakes(node):
            self.misled_about.add(name)
        # Of a restored backup the judge takes back nothing that we had bound before; what was told is judged above.
        for finding in self._judge.findings(pod.uid, SHARED) if not self.was_rewound else ():
            if finding.node not in self.misled_about:
                self.complain(f"I1: {finding.pod} on {finding.node} stands against {finding.rule}: {finding.message}")

    def written(self) -> None:
        """Before history is compacted: what led to a bind must be told from the bind."""
        self._judge.follow()

    def assumed(self, uid: str, node: str) -> None:
        """A process has decided to place a pod."""
        self._decided += 1
        self._order[uid] = self._decided
        self._judge.assumed(uid, node)

    def is_known(self, one: str, uid: str) -> bool:
        """Whoever placed `uid` has bound `one` too, or took the lease of its domains over from who had.

        Replicas that lead different domains at once hear of each other's binds by the watch.
        """
        first, last = self._placed_by.get(one), self._placed_by.get(uid)
        if first is None or last is None or one not in self.bound or one in self._strangers:
            return False
        return any(ours == theirs for ours, theirs in zip(first, last, strict=True))

    def is_told(self, pod: dict[str, Any], uid: str) -> bool:
        """Whoever sent the pod, or `uid`, had been told of it as it is there when it decided on what it sent."""
        one, version = pod["metadata"]["uid"], version_of(pod["metadata"]["resourceVersion"])
        grounds = [self.ground_of(of, self.bound.get(of, "")) for of in (one, uid)]
        told = [ground.pods[one].version for ground in grounds if ground is not None and one in ground.pods]
        return any(is_covered(version, by) for by in told)

    def unheard(self, uid: str) -> Collection[str]:
        ground = self.ground_of(uid, self.bound[uid])
        return ground.unknowable if ground is not None else ()

    def bound_from_outside(self, uid: str, node: str) -> None:
        """Somebody else has bound a pod: I1 is about what we add to that, once we can know."""
        self._strangers.add(uid)
        self.bound[uid] = node

    def ground_of(self, uid: str, node: str) -> Ground | None:
        return self._grounds.get((uid, node))

    def is_later(self, one: str, than: str) -> bool:
        return self._order.get(one, 0) > self._order.get(than, 0)

    def is_excused(self, pod: Pod, ground: Ground | None) -> bool:
        if ground is None:
            return False
        of = self._placed_by.get(pod.uid, ("", ""))[0]
        if of != ground.sender and self._unaware.keys() & {of, ground.sender}:
            return True
        if pod.uid in ground.unknowable:
            return True
        known = ground.pods.get(pod.uid)
        return pod.uid in self._strangers and (known is None or known.node != pod.node)

    def line_lost(self, sender: str, uid: str) -> None:
        if sender in self.told:
            self.told[sender].unknowable.add(uid)

    def bind_faked(self, body: bytes) -> None:
        """What it is told settles nothing that it has sent before: of that it does not know any more than it did."""
        super().bind_faked(body)
        uid = decision_of(body)[0]
        self._posts[uid] = self._posts.get(uid, [])[:-1]
        self._lied_about.add(uid)

    def rewound(self) -> None:
        """The store is as it was some time ago: bindings of since then never were, and nobody has been told yet."""
        self.was_rewound = True
        self.objects.forget()
        there = {pod.uid: pod for pod in self.pods().values()}
        self.faked.update((uid, node) for uid, node in self.bound.items() if uid not in there or not there[uid].node)
        self.bound = {uid: node for uid, node in self.bound.items() if uid in there and there[uid].node == node}
        self._posts.clear()
        for told in self.told.values():
            told.rewound(there)
        # Bindings on their way were decided on what was so before; what came back meanwhile none of them can have known.
        self._grounds = {
            at: replace(ground, unknowable=ground.unknowable | self.told[ground.sender].unknowable)
            for at, ground in self._grounds.items()
        }

    def _check_domain(self, pod: Pod, name: str) -> None:
        """I8, as the node is now."""
        domain = self._domain_of.get(pod.spec.scheduler_name)
        node = self.nodes().get(name)
        if domain is not None and node is not None and not self._homes.usable_by(domain)(node):
            self.complain(f"I8: {pod.key} of {domain} was bound to {name}")

    # -- at rest ---------------------------------------------------------------------------------------------------

    def unbound_feasible(self) -> Iterator[Pod]:
        """Pods that wait although some node of their domain has room for them (I3), and the server would have them there."""
        return self._feasible([pod for pod in self._waiting() if not self.policies.policy_of(pod.name)])

    def refused_feasible(self, aside: Collection[str]) -> Iterator[Pod]:
        """Pods that could be placed, and that the server refuses whatever happens: they are to be set aside.

        `aside`: uids of those that are.
        """
        refused = [pod for pod in self._waiting() if pod.uid not in aside and self.policies.policy_of(pod.name)]
        return self._feasible(refused)

    def _waiting(self) -> list[Pod]:
        pods = self.pods().values()
        # What a watch of claims has missed when a backup was restored, the audit finds after minutes.
        said = [p for p in pods if not (self.was_rewound and p.spec.volumes)]
        return [p for p in said if not (p.node or p.gates or p.is_deleting or p.is_terminal or p.malformed)]

    def _feasible(self, waiting: list[Pod]) -> Iterator[Pod]:
        """Those for which some node has room: counted with plain arithmetic."""
        if not waiting:
            return
        nodes = self.nodes()
        placed = [pod for pod in self.pods().values() if pod.node in nodes and not pod.is_terminal]
        standing = [(pod, nodes[pod.node]) for pod in placed]
        there: dict[str, list[Pod]] = {name: [] for name in nodes}
        for pod in placed:
            there[pod.node].append(pod)
        free = {name: dict(node.allocatable) for name, node in nodes.items()}
        for pod in placed:
            for resource, amount in {**pod.requests, PODS: 1}.items():
                free[pod.node][resource] = free[pod.node].get(resource, 0) - amount
        for pod in waiting:
            if self._fits_somewhere(pod, nodes.values(), free, standing, there):
                yield pod

    def _fits_somewhere(
        self,
        pod: Pod,
        nodes: Collection[Node],
        free: Mapping[str, Mapping[str, int]],
        standing: Collection[Standing],
        there: Mapping[str, Collection[Pod]],
    ) -> bool:
        """`there`: name of a node -> the pods on it."""
        domain = self._domain_of.get(pod.spec.scheduler_name)
        if domain is None:
            return False
        is_usable = self._homes.usable_by(domain)
        wanted = {**pod.requests, PODS: 1}
        return any(
            all(free[node.name].get(r, 0) >= a for r, a in wanted.items())
            and is_usable(node)
            and self._would_take(pod, node, there[node.name])
            and allows(pod, node, nodes, standing, is_usable)
            for node in nodes
        )

    def _would_take(self, pod: Pod, node: Node, there: Collection[Pod]) -> bool:
        """Whatever room there is."""
        if node.is_unschedulable or not wants(pod, node) or not self._tolerates(pod, node):
            return False
        if not pod.spec.required_features <= set(node.declared_features):
            return False
        if any(one.weight and not one.term.is_valid for one in pod.spec.affinity.preferred):
            return False  # upstream takes preferences that do not parse for an error
        if any(clash(pod, one) is not None for one in there) or not fits_for_certain(pod, node, there):
            return False
        return self.storage is None or self.storage.allows(pod, node, there)

    def _tolerates(self, pod: Pod, node: Node) -> bool:
        tolerations = (
            *pod.spec.tolerations,
            *self.policy_tolerations.get(self._domain_of[pod.spec.scheduler_name], ()),
        )
        hard = [taint for taint in node.taints if taint.effect in (NO_SCHEDULE, NO_EXECUTE)]
        return all(any(one.tolerates(taint) for one in tolerations) for taint in hard)


class _WriteLog:
    """`server.Interceptor`: tells the bind checker that something was written, of every lease, and of Events that break the API's rules."""

    def __init__(self, bind_checker: BindChecker) -> None:
        self._bind_checker = bind_checker

    def before(self, request: ApiRequest) -> Response | None:
        return None

    def after(self, request: ApiRequest, answer: Response | WatchStream) -> Response | WatchStream:
        if request.method != "GET":
            self._bind_checker.written()
        if isinstance(answer, Response) and answer.status == 422 and "/events" in request.path:
            self._bind_checker.complain(f"I3: an Event was no Event: {answer.body[:200]!r}")
        about = _LEASE.search(request.path)
        if request.method == "DELETE" and about is not None:
            self._bind_checker.lease_deleted(about[1] or "")
        is_write = request.method in ("POST", "PUT") and about
        if is_write and isinstance(answer, Response) and answer.status in (200, 201):
            lease = orjson.loads(answer.body)
            spec = lease["spec"]
            renewed_s = _seconds(spec["renewTime"])
            self._bind_checker.lease_written(lease["metadata"]["name"], spec.get("holderIdentity") or "", renewed_s)
        return answer


def _seconds(micro_time: str) -> float:
    """Simulated seconds of a MicroTime: the run starts at 2026-01-01T00:00:00Z and never lasts a day."""
    hours, minutes, seconds = micro_time[11:-1].split(":")
    return 3600 * int(hours) + 60 * int(minutes) + float(seconds)
