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

namespace {

// What becomes of one request: 0 taken, -1 dropped, else the errno with which it is refused.
int fate(const PeerBook& book, u32 peer, u64 bytes) {
  int seen = -1;
  WriteRequest r;
  r.peer = peer;
  r.bytes = bytes;
  const std::span<const WriteRequest> one(&r, 1);
  const auto take = [&](std::span<const WriteRequest> good) {
    if (!good.empty()) seen = 0;
    return good.size();
  };
  CHECK_EQ(book.judge(one, take, [&](u32 bad, int code) { seen = bad == peer ? code : -2; }), 1u);
  CHECK_EQ(book.num_good(one), seen == 0 ? 1u : 0u);
  return seen;
}

}  // namespace

TEST(transport_peer_book_judges_requests) {
  PeerBook book(3);
  book.open(0);
  book.open(1);
  CHECK_EQ(fate(book, 0, kMaxWriteBytes), 0);
  CHECK_EQ(fate(book, 0, kMaxWriteBytes + 1), EMSGSIZE);
  CHECK_EQ(fate(book, 2, 0), ENOTCONN);
  CHECK_EQ(fate(book, 3, 0), EINVAL);
  book.fail(1, PeerFault::kLost, 0);
  CHECK_EQ(fate(book, 1, 0), -1);
  book.close(0);
  CHECK_EQ(fate(book, 0, 0), -1);
}

TEST(transport_peer_book_takes_runs_around_what_is_bad_until_there_is_no_room) {
  PeerBook book(4);
  book.open(0);
  book.open(1);
  book.open(2);
  book.close(2);
  std::vector<WriteRequest> requests;
  for (const u32 peer : {0u, 1u, 2u, 0u, 3u, 3u, 1u, 0u, 1u})
    requests.push_back({peer, static_cast<u32>(requests.size())});
  std::vector<u32> taken, refused;
  std::size_t room = requests.size();
  const auto take = [&](std::span<const WriteRequest> good) {
    std::size_t n = 0;
    for (; n < good.size() && room != 0; ++n, --room) taken.push_back(good[n].immediate);
    return n;
  };
  const auto refuse = [&](u32 peer, int) {
    refused.push_back(peer);
    book.fail(peer, PeerFault::kProtocol, 1);  // the next one to it is dropped
  };
  CHECK_EQ(book.judge(requests, take, refuse), requests.size());
  CHECK(taken == std::vector<u32>({0, 1, 3, 6, 7, 8}));
  CHECK(refused == std::vector<u32>({3}));
  room = 5;  // the sixth good one is the last of the nine
  CHECK_EQ(book.judge(requests, take, refuse), 8u);
  room = 0;
  CHECK_EQ(book.judge(requests, take, refuse), 0u);
}
