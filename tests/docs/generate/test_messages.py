"""Error texts found in sources: in a made tree, and in ours where known ones must be among them."""

from __future__ import annotations

from pathlib import Path

from docs.generate.messages import (
    messages,
    network_table,
    network_words,
    proxy_messages,
    refusal_table,
    refusals,
    says_something,
)

PYTHON = """
def f(rank, name, x):
    if rank:
        raise NotSupported(f"rank {rank} cannot " "do that" + str(x))
    if name:
        refuse(name, x, "anything")
    if x:
        refuse("x", x, f"1 to {rank}", "Take less.")
    try:
        raise InvalidArgument(str(x))
    except ValueError as error:
        raise TransportError(f"{x}: {error}") from error
"""
NATIVE = """
void f() {
  // throw std::runtime_error("in a comment is found too, which does no harm");
  if (a) throw std::runtime_error("net: rank " + std::to_string(r) + " is "
                                  "gone" + more);
  throw std::invalid_argument(who + ": " + e.what());
}
"""


def tree(folder: Path) -> Path:
    for name, text in (("uccl_ep/a.py", PYTHON), ("proxy/transport/x/b.cpp", NATIVE)):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_docs_messages_of_a_made_tree(tmp_path: Path) -> None:
    root = tree(tmp_path)
    assert [(m.kind, m.text) for m in messages(root)] == [("NotSupported", "rank … cannot do that…")]
    assert [(r.argument, r.allowed, r.hint) for r in refusals(root)] == [("x", "1 to …", "Take less.")]
    assert "net: rank … is gone…" in [m.text for m in proxy_messages(root)]


def test_docs_messages_of_ours() -> None:
    texts = {m.text for m in messages()}
    assert "this Buffer has been destroyed" in texts
    assert "UCCL_EP_PROXY=process and UCCL_EP_TRANSPORT=loopback exclude each other" in texts
    assert {m.kind for m in messages()} >= {"InvalidArgument", "NotSupported", "TransportError", "SettingsMismatch"}
    native = {m.text for m in proxy_messages()}
    assert "tcp: interface_address '…' means every interface; name one" in native
    assert not any("simulat" in m.where for m in proxy_messages())


def test_docs_messages_refusals_of_ours() -> None:
    arguments = {r.argument for r in refusals()}
    assert {"num_experts", "timeout_s", "zero_copy", "x"} <= arguments
    assert refusal_table().count("\n") == len(refusals()) + 2


def test_docs_messages_network_words() -> None:
    words = dict(network_words())
    assert words["transport retry counter exceeded"].startswith("the peer's process or host is gone")
    assert "on the way" in next(what for what in words if "checksum" in what)
    assert "success" not in words and len(words) > 40
    assert network_table().count("\n") == len(network_words()) + 2


def test_docs_messages_with_no_words_of_their_own() -> None:
    assert says_something("no peer …") and not says_something("rank …: …")
