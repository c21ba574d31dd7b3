// Peer states: one event in a life, none after closing, and a verdict for every request.
#include "native/check.h"
#include "transport/peer_book.h"

using namespace uccl;

TEST(transport_peer_book_reports_each_peer_once) {
  PeerBook book(4);
  for (u32 p = 0; p < 3; ++p) book.open(p);
  CHECK(book.fail(1, PeerFault::kLost, 7));
  CHECK(!book.fail(1, PeerFault::kProtocol, 8));
  CHECK(book.fail(0, PeerFault::kProtocol, 9));
  CHECK(book.fail(3, PeerFault::kNetwork, 5));  // never connected: can still be reported
  CHECK(!book.is_open(1) && book.is_open(2));
  PeerEvent e[2];
  CHECK_EQ(book.take_events(e), 2u);
  CHECK_EQ(e[0].peer, 1u);
  CHECK_EQ(e[0].code, 7);
  CHECK(e[1].fault == PeerFault::kProtocol);
  CHECK_EQ(book.take_events(e), 1u);
  CHECK_EQ(e[0].peer, 3u);
  CHECK_EQ(book.take_events(e), 0u);
}

TEST(transport_peer_book_says_nothing_of_a_closed_peer) {
  PeerBook book(2);
  book.open(0);
  book.open(1);
  book.fail(0, PeerFault::kLost, 0);
  book.close(0);  // before the event was polled
  book.close(1);
  CHECK(!book.fail(1, PeerFault::kLost, 0));
  PeerEvent e[2];
  CHECK_EQ(book.take_events(e), 0u);
}

TEST(transport_peer_book_judges_requests) {
  PeerBook book(3);
  book.open(0);
  book.open(1);
  int code = -1;
  WriteRequest r;
  r.bytes = kMaxWriteBytes;
  CHECK(book.judge(r, &code) == PeerBook::Verdict::kPost);
  r.bytes = kMaxWriteBytes + 1;
  CHECK(book.judge(r, &code) == PeerBook::Verdict::kRefuse);
  CHECK_EQ(code, EMSGSIZE);
  r.bytes = 0;
  r.peer = 2;
  CHECK(book.judge(r, &code) == PeerBook::Verdict::kRefuse);
  CHECK_EQ(code, ENOTCONN);
  r.peer = 3;
  CHECK(book.judge(r, &code) == PeerBook::Verdict::kRefuse);
  CHECK_EQ(code, EINVAL);
  r.peer = 1;
  book.fail(1, PeerFault::kLost, 0);
  CHECK(book.judge(r, &code) == PeerBook::Verdict::kDrop);
  r.peer = 0;
  book.close(0);
  CHECK(book.judge(r, &code) == PeerBook::Verdict::kDrop);
}
