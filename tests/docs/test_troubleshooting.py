"""Every error text that the sources raise has an entry in troubleshooting, and every entry has its text."""

from __future__ import annotations

import re
from pathlib import Path

from docs.generate.markdown import blocks
from docs.generate.messages import ELLIPSIS, messages, proxy_messages, refusals, says_something
from uccl_ep.errors import InvalidArgument, PeerLost, PeerTimeout, refuse

PAGE = (Path(__file__).resolve().parents[2] / "docs/pages/troubleshooting.md").read_text(encoding="utf-8")


def entries(page: str = PAGE) -> dict[str, re.Pattern[str]]:
    """The lines of the page's text blocks, each as what it matches."""
    lines = [line for block in blocks(page) if block.language == "text" for line in block.body.splitlines()]
    return {line: re.compile(".*".join(map(re.escape, line.split(ELLIPSIS))), re.DOTALL) for line in lines}


def composed() -> list[str]:
    """Messages that classes put together from facts."""
    facts = {"rank": 0, "peer": 3, "host": "b", "phase": "dispatch", "expected": 4, "seen": 1}
    found = [
        str(PeerTimeout(**facts, waited_s=1.0, last_seen_s=0.5)),
        str(PeerLost(**facts, reason="connection reset")),
    ]
    try:
        refuse("topk_idx", (3, 4), "an int64 tensor", "Pass what the router gave.")
    except InvalidArgument as error:
        found.append(str(error))
    return found


def texts() -> list[tuple[str, str]]:
    """(where, what it says) of every error."""
    found = [(m.where, m.text) for m in [*messages(), *proxy_messages()]] + [(r.where, r.text) for r in refusals()]
    return found + [("composed", text) for text in composed()]


def test_docs_every_error_text_has_its_entry() -> None:
    known = entries().values()
    raised = texts()
    missing = [f"{where}: {text}" for where, text in raised if not any(e.fullmatch(text) for e in known)]
    assert not missing, "add these to docs/pages/troubleshooting.md:\n" + "\n".join(missing)
    assert len(raised) > 300


def test_docs_every_entry_has_its_error_text() -> None:
    raised = [text for _, text in texts()]
    stale = [line for line, entry in entries().items() if not any(entry.match(text) for text in raised)]
    assert not stale, "raised nowhere any more:\n" + "\n".join(stale)


def test_docs_entries_say_something() -> None:
    """An entry of wildcards would cover everything."""
    assert [line for line in entries() if not says_something(line)] == []
    sections = re.split(r"^### ", PAGE, flags=re.M)[1:]
    for section in sections:
        prose = re.sub(r"```.*?```", "", section.partition("\n")[2], flags=re.S).strip()
        assert len(prose) > 60, f"{section.splitlines()[0]}: no words on what it means and what to do"


def test_docs_a_new_error_text_would_be_missed() -> None:
    assert not any(entry.fullmatch("the flux capacitor of rank … is empty") for entry in entries().values())
