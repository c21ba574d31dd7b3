// Endpoints of a real provider: a write with its data, events, descriptors, and errors that name what failed.
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "proxy/transport/libfabric/available.h"
#include "transport/libfabric/endpoint.h"

using namespace uccl;
using libfabric_tests::settings_of;
using libfabric_tests::unavailable;

namespace {

struct Side {
  explicit Side(const std::string& name)
      : memory(4096), settings(settings_of(name)), provider(choose_provider(settings, "")) {
    settings.local.add(Span{1 << 20, memory.size(), memory.data()});
    auto domain = open_domain(provider);
    domain->spans = register_spans(provider, *domain->domain, nullptr, settings, nullptr);
    endpoint = std::make_unique<LibfabricEndpoint>(provider, domain, settings, nullptr);
  }
  std::vector<u8> memory;
  TransportSettings settings;
  Provider provider;
  std::unique_ptr<LibfabricEndpoint> endpoint;
};

void exchange(const std::string& provider) {
  Side a(provider), b(provider);
  const auto target = b.endpoint->address();
  CHECK_EQ(target.spans.size(), 1u);
  CHECK_EQ(target.spans[0].offset, 1ull << 20);
  CHECK_EQ(target.spans[0].bytes, 4096u);
  RmaWrite w;
  w.destination = a.endpoint->add(target.name);
  std::memcpy(a.memory.data(), contract::random_bytes(), 1000);
  w.source = a.memory.data();
  w.bytes = 1000;
  w.remote_address = target.spans[0].address + 96;
  w.key = target.spans[0].key;
  w.data = 0xfedcba9876543210ull;
  w.with_data = w.confirmed = true;
  w.context = &w;
  bool posted = false, completed = false, arrived = false;
  CHECK(contract::poll_until([&] {
    if (!posted) {
      const int error = a.endpoint->write(w);
      CHECK(error == 0 || error == EAGAIN);
      posted = error == 0;
    }
    RmaEvent e;
    if (a.endpoint->poll(std::span(&e, 1)) != 0) {
      CHECK_EQ(e.error, 0);
      CHECK(e.context == &w && !e.arrival);
      completed = true;
    }
    if (b.endpoint->poll(std::span(&e, 1)) != 0) {
      CHECK(e.arrival && e.context == nullptr);
      CHECK_EQ(e.data, 0xfedcba9876543210ull);
      CHECK(std::memcmp(&b.memory[96], contract::random_bytes(), 1000) == 0);
      arrived = true;
    }
    return completed && arrived;
  }));
  CHECK_EQ(static_cast<int>(b.memory[95]) + b.memory[1096], 0);
}

}  // namespace

// From its beginning on each time, and twice as far at least; what is under way keeps the registration that it had.
TEST(libfabric_endpoint_late_memory_follows_what_is_asked_for) {
  if (unavailable("tcp")) return;
  constexpr u64 kBytes = 300000;
  std::vector<u8> rows(kBytes);
  const Provider provider = choose_provider(settings_of("tcp"), "");
  const auto domain = open_domain(provider);
  const Span span{1ull << 40, kBytes, rows.data()};
  LateMemory late;
  void* descriptor = nullptr;
  const auto reaches = [&](u64 bytes) { return late.describe(rows.data() + bytes - 1, 1, &descriptor); };
  CHECK(!reaches(1));
  late.admit(provider.limits, *domain->domain, span, 1);
  CHECK(reaches(1 << 16) && !reaches((1 << 16) + 1) && !late.describe(rows.data() - 1, 1, &descriptor));
  late.admit(provider.limits, *domain->domain, span, (1 << 16) + 1);
  CHECK(reaches(1 << 17) && !reaches((1 << 17) + 1));
  CHECK(late.describe(rows.data(), 1 << 17, &descriptor));  // in one
  late.admit(provider.limits, *domain->domain, span, kBytes);
  CHECK(late.describe(rows.data(), kBytes, &descriptor));
  std::string refused;
  try {
    late.admit(provider.limits, *domain->domain, span, kBytes + 1);
  } catch (const std::runtime_error& e) { refused = e.what(); }
  CHECK(refused.find("300001 bytes of a span of 300000") != std::string::npos);
}

TEST(libfabric_endpoint_writes_with_data_over_tcp) {
  if (!unavailable("tcp")) exchange("tcp");
}
TEST(libfabric_endpoint_writes_with_data_over_shm) {
  if (!unavailable("shm")) exchange("shm");
}

// A wrong key must not reach the memory; where the provider tells the sender, it is an event of that write.
TEST(libfabric_endpoint_a_wrong_key_writes_nothing) {
  if (unavailable("tcp")) return;
  Side a("tcp"), b("tcp");
  const auto target = b.endpoint->address();
  RmaWrite w;
  w.destination = a.endpoint->add(target.name);
  w.source = contract::random_bytes();
  w.bytes = 64;
  w.remote_address = target.spans[0].address;
  w.key = target.spans[0].key ^ 1;
  w.confirmed = w.with_data = true;
  w.context = &w;
  bool posted = false;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
  while (std::chrono::steady_clock::now() < end) {
    if (!posted) posted = a.endpoint->write(w) == 0;
    RmaEvent e;
    if (a.endpoint->poll(std::span(&e, 1)) != 0) CHECK(e.error != 0);
    if (b.endpoint->poll(std::span(&e, 1)) != 0) CHECK(!e.arrival);
  }
  CHECK(posted);
  for (const u8 byte : b.memory) CHECK_EQ(static_cast<int>(byte), 0);
}

TEST(libfabric_endpoint_keys_differ_and_are_not_small) {
  if (unavailable("tcp")) return;
  Side a("tcp"), b("tcp");
  const auto x = a.endpoint->address(), y = b.endpoint->address();
  if (a.provider.limits.mr_mode & fi::kMrProvKey) return;  // the provider's own business
  CHECK(x.spans[0].key != y.spans[0].key && x.mailbox.key != x.spans[0].key);
  CHECK(x.spans[0].key > 1u << 20 || y.spans[0].key > 1u << 20);
}

TEST(libfabric_endpoint_refuses_a_name_that_is_none) {
  if (unavailable("tcp")) return;
  Side a("tcp");
  CHECK_THROWS(std::runtime_error, a.endpoint->add(std::string(16, '\xff')));
}

TEST(libfabric_endpoint_describes_only_what_is_registered) {
  u8 memory[64];
  RegisteredMemory m;
  m.regions.push_back(RegisteredMemory::Region{nullptr, memory + 16, 32, {}});
  fi::MemoryRegion region{};
  void* descriptor = nullptr;
  m.regions[0].region = FiPointer<fi::MemoryRegion>(&region);
  region.mem_desc = &region;
  CHECK(m.describe(memory + 16, 32, &descriptor) && descriptor == &region);
  CHECK(m.describe(memory + 47, 1, &descriptor));
  CHECK(!m.describe(memory + 47, 2, &descriptor));
  CHECK(!m.describe(memory + 15, 1, &descriptor));
  CHECK(!m.describe(memory + 16, ~0ull, &descriptor));
  m.regions[0].region.release();
}
