"""The numbers of low-latency calls, and how many of them are outstanding."""

from __future__ import annotations

from uccl_ep.errors import InvalidArgument


class Epochs:
    """Calls of one phase that were queued, and which of them have their receiving half queued.

    Only to refuse a third outstanding result: the numbers that kernels go by are theirs (kernels/low_latency/common.h),
    since a recorded graph runs calls that nobody makes here.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.consumed = 0  # every call up to here
        self._ahead: set[int] = set()

    def next(self, what: str) -> int:
        """The next call's epoch.

        Raises:
            InvalidArgument: two calls before it have not been received yet.
        """
        if self.sent - self.consumed >= 2:
            self.refuse_third(what)
        self.sent += 1
        return self.sent

    def refuse_third(self, what: str) -> None:
        """Raises InvalidArgument when two calls have not been received yet."""
        if self.sent - self.consumed >= 2:
            raise InvalidArgument(
                f"a third {what} before the receive hook of {what} number {self.consumed + 1} has run is refused: "
                "at most two results may be outstanding. Call that hook first."
            )

    def finish(self, epoch: int) -> None:
        """The receiving half of `epoch` has been queued."""
        if epoch == self.consumed + 1 and not self._ahead:
            self.consumed = epoch
            return
        self._ahead.add(epoch)
        while self.consumed + 1 in self._ahead:
            self.consumed += 1
            self._ahead.discard(self.consumed)
