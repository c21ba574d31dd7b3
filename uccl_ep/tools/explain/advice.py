"""What to do about a story: the next steps of whoever has to mend the job, the one that matters most first."""

from __future__ import annotations

from uccl_ep.tools.explain.story import NO_CALL, Loss, RankStory, Story, Waiting, named_ranks

LIKE_THIS = 3  # losses that are told one by one; where more are gone they are gone for one reason


def advise(story: Story) -> list[str]:
    """Steps, a sentence or two each; never empty."""
    records = {rank.rank: rank for rank in story.ranks}
    steps = [step for loss in _first(story) if (step := _about_loss(loss, records.get(loss.rank)))]
    if not story.lost:
        steps += _about_waits(story, records)
    if not steps and any(rank.error for rank in story.ranks):
        rank = next(rank for rank in story.ranks if rank.error)
        steps.append(
            f"Read the error of rank {rank.rank} (host {rank.host}) in its output: {rank.error.split(':')[0]}."
        )
    unseen = [rank for rank in story.missing if rank not in {loss.rank for loss in story.lost}]
    if steps and unseen:
        whose = named_ranks(unseen)
        steps.append(
            f"Copy the record of {whose} into this folder, if it wrote one, and explain again: more can be said."
        )
    if story.lost:
        steps.append(
            "To go on without lost ranks next time, let survivors call Buffer.recover(), or make the Buffer with "
            "enable_shrink=True."
        )
    return steps or [
        "Nothing: no rank has failed here. For a time line run with UCCL_EP_TRACE=DIR, then uccl-ep trace."
    ]


def _first(story: Story) -> list[Loss]:
    return sorted(story.lost, key=lambda loss: (loss.rank != story.root_cause, loss.at_s))[:LIKE_THIS]


def _about_loss(loss: Loss, record: RankStory | None) -> str:
    """Empty: it ended because of another one."""
    who = f"rank {loss.rank} (host {loss.host})"
    if loss.goodbye:
        return (
            f"Let all ranks make the same calls: {who} had ended its Buffer while others still called. The usual "
            "reason is data of different length on the ranks; group.barrier() before destroy() keeps the end together."
        )
    if record is not None and record.error.startswith(("PeerLost", "PeerTimeout")):
        return ""
    if record is not None and record.error:
        return f"Correct what {who} raised, {record.error.partition(':')[0]}: the others only followed."
    return (
        f"Look at the last lines of {who}, and on that host for who killed it: `dmesg | grep -i -e oom -e killed`, the "
        "launcher's log, Xid errors of its GPU. It left no error of ours: it was killed, or ended before the others."
    )


def _about_waits(story: Story, records: dict[int, RankStory]) -> list[str]:
    if story.root_cause is None:
        return []
    who = f"rank {story.root_cause}"
    waits = [wait for wait in story.waits if wait.peer == story.root_cause]
    record = records.get(story.root_cause)
    if any(_under_way(wait) for wait in waits):
        ranks = named_ranks(sorted({wait.rank for wait in waits if _under_way(wait)}))
        return [
            f"Check the network between {who} and {ranks}: a part of the rows had come. Run `uccl-ep doctor` on both "
            "hosts; look for links that are down or flap, and for dropped packets."
        ]
    if record is not None and (not record.open or record.doing == NO_CALL):
        return [
            f"Find out what {who} (host {record.host}) did outside of our calls: it had not begun the one that the "
            "others waited in. While it hangs, `py-spy dump --pid` shows it. If it may take that long, raise "
            "UCCL_EP_TIMEOUT_S."
        ]
    return [
        f"Find out what held {who} up: run the job again and watch it with `uccl-ep top`, which tells a late rank from "
        "a slow link. If it may take that long, raise UCCL_EP_TIMEOUT_S."
    ]


def _under_way(wait: Waiting) -> bool:
    """The peer had announced what it sends, and not all of it had come."""
    return wait.expected is not None and wait.seen is not None and wait.seen < wait.expected
