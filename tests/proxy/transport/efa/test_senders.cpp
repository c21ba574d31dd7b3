// The table of senders: every one is found, nobody else is, whatever their numbers.
#include <map>
#include <random>

#include "native/check.h"
#include "transport/efa/senders.h"

using namespace uccl;

TEST(transport_efa_senders_finds_each_and_nobody_else) {
  EfaSenders senders;
  CHECK_EQ(senders.find(0, 0), EfaSenders::kNobody);
  std::map<std::pair<u32, u32>, u32> known;
  std::mt19937 random(7);
  for (u32 peer = 0; peer < 1024; ++peer) {
    // In a row as devices number them, far apart, and with one number alike.
    const u32 handle = peer % 3 == 0 ? random() : peer / 8, queue_pair = peer % 5 == 0 ? random() : peer % 64;
    known[{handle, queue_pair}] = peer;
    senders.add(handle, queue_pair, peer);
  }
  for (const auto& [who, peer] : known) CHECK_EQ(senders.find(who.first, who.second), peer);
  for (u32 i = 0; i < 4096; ++i) {
    const std::pair<u32, u32> who(random() % 256, random() % 128);
    if (!known.contains(who)) CHECK_EQ(senders.find(who.first, who.second), EfaSenders::kNobody);
  }
}

TEST(transport_efa_senders_takes_the_newest_of_the_same_numbers) {
  EfaSenders senders;
  senders.add(1, 2, 3);
  senders.add(1, 2, 4);
  CHECK_EQ(senders.find(1, 2), 4u);
  CHECK_EQ(senders.find(2, 1), EfaSenders::kNobody);
}
