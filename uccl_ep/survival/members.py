"""The part of a Buffer whose ranks join and leave while the others go on: from one life to another at one step."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from uccl_ep.errors import InvalidArgument, PeerLost, UcclEpError, refuse
from uccl_ep.group.group import as_group
from uccl_ep.layout.plan import MemoryBill
from uccl_ep.recorder.calls import recorded
from uccl_ep.survival.captured import Captured
from uccl_ep.survival.life import check_budgets
from uccl_ep.survival.sleep import Sleeper
from uccl_ep.survival.standby import Standby
from uccl_ep.system.ownership import in_turn


class MemberChanges(Sleeper):
    """prepare_members() and switch_members() of a Buffer.

    Attributes:
        keeps_graphs: graphs of low-latency calls that could be replayed before the last switch_members() or recover()
            still can be (see switch_members); True before the first.
    """

    group: Any
    rank: int
    group_size: int
    num_nvl_bytes: int
    num_rdma_bytes: int
    keeps_graphs: bool = True
    _standby: Standby | None = None
    _next_group: Any = None
    _ending: tuple[threading.Thread, ...] = ()  # of lives that were left

    @in_turn("prepare_members")
    @recorded("prepare_members")
    def prepare_members(
        self,
        group: Any,
        *,
        num_nvl_bytes: int | None = None,
        num_rdma_bytes: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Begins a change of members while calls go on: ranks join, leave, are replaced, or several of these at once.

        Called by each rank of the present members, between calls, before the same step: ranks that have made different
        calls, or name groups that do not fit together, all get an error from switch_members(). Returns at once: a
        thread builds the next members' memory and connections beside the present ones, so both take memory until the
        switch (memory_bill() lists both), and cores. Ranks that join make a Buffer with the same arguments meanwhile;
        their constructor returns when everybody has built, and their first call waits until the others have switched.
        Whom this rank masks is not waited for. Ours, not DeepEP's.

        Args:
            group: of the next members, of any size, as the constructor takes it; ranks may have other numbers there.
                None: this rank leaves. Nothing else may use the group until the switch.
            num_nvl_bytes, num_rdma_bytes: of each next member, for its size (the size hints); None: as they are.
            timeout_s: how long building may take; None: UCCL_EP_TIMEOUT_S. A rank that prepares nothing is waited for
                as long, and no shorter than UCCL_EP_TIMEOUT_S.

        Raises:
            InvalidArgument: a change is under way, or an argument is out of range; nothing was done. Where the others
                have prepared one before an earlier step, nothing is raised here: switch_members() does.
        """
        life = self._living
        if self._standby is not None and self._standby.refuses:
            return
        if self._standby is not None:
            raise InvalidArgument("a change of members is under way: switch_members() ends it")
        patience_s = life.terms.settings.timeout_s if timeout_s is None else timeout_s
        if type(patience_s) not in (int, float) or not 0 < patience_s < 1e6:
            refuse("timeout_s", timeout_s, "a number of seconds above 0")
        nvl = self.num_nvl_bytes if num_nvl_bytes is None else num_nvl_bytes
        rdma = self.num_rdma_bytes if num_rdma_bytes is None else num_rdma_bytes
        check_budgets((nvl, rdma), life.terms.low_latency_mode)
        terms = replace(life.terms, budgets=(nvl, rdma), captured=life.captured())
        adapted = None if group is None else as_group(group)
        life.session.check()
        life.device.begin()
        life.device.check_host_wait()
        life.device.catch_up()  # a kernel may mask a rank
        self._next_group = group
        self._standby = Standby(life, adapted, terms, life.masks.masked(), patience_s)

    @in_turn("switch_members")
    def switch_members(self) -> bool:
        """Ends a change of members at a step that all ranks agree on. Called by each of the present members once a
        step, between calls: where no receive hook is outstanding.

        Costs microseconds. It waits only where a rank comes to the step that it pledged before it has heard what the
        others pledged, a tenth of a second or four steps later, and at the switch for this rank's queued kernels.

        Returns:
            False until the agreed step, and where no change is under way. True at it: this Buffer now is of the next
            members, with its rank and group_size there. Handles, hooks and views from before are refused, and masks are
            clear. `keeps_graphs` says whether graphs of low-latency calls, captured before prepare_members(), may be
            replayed on; their replays must have ended, on any stream, when this is called. Otherwise, and where they
            hold other calls, graphs must be captured anew. On a rank that leaves, True says that it may be destroyed.

            They may be replayed where all that their calls were captured with stays as it is: this rank's number, the
            size of the group, its nodes, num_nvl_bytes and num_rdma_bytes, the ranks on this GPU; and where no rank has
            asked for zero-copy rows. So a rank may be replaced by another one with its number. With enable_shrink and
            a StoreGroup ranks may also join and leave, as its absent numbers.

        Raises:
            UcclEpError: the change has failed, since a rank could not build, in time or at all, or the ranks have not
                prepared the same; says who and why. All present members raise it before the same step, also one that
                has prepared nothing, go on as they were, and may begin another change. (A rank that does not call this
                where it has prepared nothing is not told; the others raise the error after timeout_s.)
            PeerLost: the others have left this rank out of the change, since one of them masks it, or since it
                prepared too late.
            PeerTimeout, PeerLost: a fault of an earlier call. recover() goes on from whichever life the ranks agree on.
            InvalidArgument: a receive hook has not run; call again when it has.
        """
        life, standby = self._living, self._standby
        if standby is None and Standby.is_missed(life):
            timeout_s = life.terms.settings.timeout_s
            self._standby = standby = Standby(life, None, None, life.masks.masked(), timeout_s)
        life.steps += 1
        if standby is None:
            return False
        life.session.check()
        if life.device.host_memory:
            standby.lose(life.masks.masked())
        try:
            if not standby.step():
                return False
        except UcclEpError:
            self._standby = None
            self._later(standby.drop)
            raise
        life.settle("switch_members()")
        self._switch(standby, standby.captured)
        return True

    def _switch(self, standby: Standby, captured: Captured | None = None) -> None:
        """`captured`: calls to go on with, of which no kernel runs."""
        self._standby = None
        self.keeps_graphs = False
        if standby.leaves:
            return
        self._life = life = standby.take()
        self.runtime, self.group = life.session, self._next_group
        self.rank, self.group_size = life.session.rank, life.session.num_ranks
        self.num_nvl_bytes, self.num_rdma_bytes = life.terms.budgets
        try:
            if captured is not None:
                self.keeps_graphs = captured.go_on_in(life)  # while the life before has what they name
        finally:
            self._later(lambda: standby.end_present(life))

    def _later(self, what: Any) -> None:
        """Runs it on a thread, which destroy() waits for."""
        thread = threading.Thread(target=what, name="uccl-ep-last-life")
        thread.start()
        self._ending = (*(one for one in self._ending if one.is_alive()), thread)

    def _bill(self, present: MemoryBill) -> MemoryBill:
        """With what the next members take, once it is there."""
        return present if self._standby is None else self._standby.bill(present)

    def _resolve_change(self) -> None:
        """Before recover(): a change that the ranks have agreed to end in the switch does so here; else it is over.

        Raises:
            InvalidArgument: this rank leaves, as was agreed.
        """
        if (standby := self._standby) is None:
            return
        try:
            self._life.session.check()
        except PeerLost as lost:
            standby.lose([] if lost.peer is None or lost.peer == self.rank else [lost.peer])
        except UcclEpError:
            pass
        if not standby.withdraw("recover() was called"):
            self._standby = None
            standby.drop()
        elif standby.leaves:
            raise InvalidArgument("this rank has left, as was agreed: destroy() its Buffer")
        else:
            self._switch(standby)

    def _end_change(self) -> None:
        """The Buffer ends."""
        standby, self._standby = self._standby, None
        if standby is not None:
            standby.drop()
        for thread in self._ending:
            thread.join()
