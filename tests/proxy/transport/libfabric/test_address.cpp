// Addresses survive the way through text; whatever else comes is refused with a reason, never believed in part.
#include <stdexcept>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "transport/libfabric/address.h"
#include "wire/limits.h"

using namespace uccl;

namespace {

LibfabricAddress random_address(u64 seed) {
  u64 state = seed;
  const auto next = [&] { return state = contract::mix(state, 3); };
  LibfabricAddress a;
  a.provider = next() % 2 ? "tcp;ofi_rxm" : "shm";
  a.source_form = static_cast<SourceForm>(1 + next() % 3);
  a.lanes.resize(1 + next() % 4);
  for (auto& l : a.lanes) {
    for (u64 n = 1 + next() % 60; n != 0; --n) l.name += static_cast<char>(next());
    l.mailbox = RemoteMemory{0, next() % kMaxRegionBytes, next(), next()};
    for (u64 n = next() % 4; n != 0; --n) {
      RemoteMemory m;
      m.offset = next() % kMaxRegionBytes;
      m.bytes = 1 + next() % (kMaxRegionBytes - m.offset);
      m.address = next() % (~0ull - m.bytes);
      m.key = next();
      l.spans.push_back(m);
    }
  }
  return a;
}

bool refused(const std::string& text) {
  try {
    LibfabricAddress::parse(text);
  } catch (const std::runtime_error& e) { return std::string(e.what()).find("at character") != std::string::npos; }
  return false;
}

}  // namespace

TEST(libfabric_address_survives_its_text) {
  for (u64 seed = 1; seed <= 200; ++seed) {
    const LibfabricAddress a = random_address(seed), b = LibfabricAddress::parse(a.text());
    CHECK_EQ(a.text(), b.text());
    CHECK_EQ(a.provider, b.provider);
    CHECK(a.source_form == b.source_form);
    CHECK_EQ(a.lanes.size(), b.lanes.size());
    for (std::size_t i = 0; i < a.lanes.size(); ++i) {
      CHECK_EQ(a.lanes[i].name, b.lanes[i].name);
      CHECK_EQ(a.lanes[i].mailbox.key, b.lanes[i].mailbox.key);
      CHECK_EQ(a.lanes[i].spans.size(), b.lanes[i].spans.size());
      for (std::size_t k = 0; k < a.lanes[i].spans.size(); ++k) {
        CHECK_EQ(a.lanes[i].spans[k].address, b.lanes[i].spans[k].address);
        CHECK_EQ(a.lanes[i].spans[k].bytes, b.lanes[i].spans[k].bytes);
      }
    }
  }
}

TEST(libfabric_address_is_text) {
  for (const char c : random_address(9).text()) CHECK(c >= ' ' && c < 127);
}

// A cut text may end in a shorter number; everything that is still an address must be one that says so of itself.
TEST(libfabric_address_refuses_what_is_cut_or_changed) {
  const LibfabricAddress a = random_address(5);
  const std::string text = a.text();
  for (std::size_t n = 0; n < text.size(); ++n) {
    const std::string cut = text.substr(0, n);
    if (refused(cut)) continue;
    CHECK_EQ(LibfabricAddress::parse(cut).text(), cut);
  }
  CHECK(refused(text + " "));
  CHECK(refused(text + "0 1"));
  u64 state = 1;
  for (int i = 0; i < 20000; ++i) {
    std::string changed = text;
    state = contract::mix(state, 1);
    changed[state % text.size()] = static_cast<char>(state >> 32);
    if (!refused(changed)) LibfabricAddress::parse(changed);
  }
}

TEST(libfabric_address_refuses_beyond_its_limits) {
  CHECK(refused(""));
  CHECK(refused("shm1 1 2 4"));
  CHECK(refused("fi2 tcp 1 1 00 0,0,0 0"));
  CHECK(!refused("fi1 tcp 1 1 00 0,0,0 0"));
  CHECK(refused("fi1 tcp 0 1 00 0,0,0 0"));     // source form
  CHECK(refused("fi1 tcp 4 1 00 0,0,0 0"));
  CHECK(refused("fi1 tcp 1 0"));                // no lane
  CHECK(refused("fi1 tcp 1 257 00 0,0,0 0"));   // too many
  CHECK(refused("fi1  1 1 00 0,0,0 0"));        // no provider
  CHECK(refused("fi1 tcp 1 1 000 0,0,0 0"));    // half a byte
  CHECK(refused("fi1 tcp 1 1 0g 0,0,0 0"));
  CHECK(refused("fi1 tcp 1 1 00 0,0,0 65"));    // spans
  CHECK(refused("fi1 tcp 1 1 00 0,0,0 1 0,0,0,0"));  // an empty span
  CHECK(refused("fi1 tcp 1 1 00 0,0,0 1 0,16,18446744073709551615,0"));  // it would wrap
  CHECK(refused("fi1 tcp 1 1 00 0,0,0 1 1099511627776,1,0,0"));          // beyond the flat space
  CHECK(refused("fi1 " + std::string(65, 'x') + " 1 1 00 0,0,0 0"));
  CHECK(refused("fi1 tcp 1 1 " + std::string(1026, '0') + " 0,0,0 0"));
}
