// Registration: each way in its turn, every failure said, chunks, and nothing left behind.
#include <cerrno>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "native/check.h"
#include "proxy/transport/verbs/fake_verbs.h"
#include "transport/verbs/memory.h"

using namespace uccl;

namespace {

struct Registered {
  std::unique_ptr<VerbsNic> nic;
  std::unique_ptr<VerbsMemory> memory;
  std::string notes, error;
};

std::vector<u8>& bytes() {
  static std::vector<u8> v(1 << 20);
  return v;
}

Registered enlist(const fake::Options& o, int dmabuf_fd, u64 chunk = 1 << 16, bool relaxed = true) {
  fake::Fabric::begin(o);
  Registered r;
  std::vector<Note> notes;
  TransportSettings s;
  s.local.add(Span{0, 300000, bytes().data()});
  s.local.add(Span{1 << 20, 1, bytes().data() + 500000});
  s.local.add(Span{1 << 21, 0, nullptr});
  if (dmabuf_fd >= 0) s.fabric.span_dmabuf_fds = {{dmabuf_fd}};
  s.fabric.relaxed_ordering = relaxed;
  VerbsTuning t;
  t.chunk_bytes = chunk;
  r.nic = std::make_unique<VerbsNic>(fake::Fabric::the().functions(), NicSettings{"fake0", 1, -1}, s.fabric, notes);
  try {
    r.memory = std::make_unique<VerbsMemory>(*r.nic, s, t, notes);
  } catch (const std::runtime_error& e) { r.error = e.what(); }
  for (const Note& n : notes) r.notes += n.choice + ": " + n.reason + "\n";
  return r;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST(transport_verbs_memory_chunks_and_lookup) {
  const Registered r = enlist({}, -1);
  CHECK_EQ(r.memory->rkeys().size(), 6u);  // ceil(300000 / 65536) + 1
  CHECK_EQ(r.memory->find(bytes().data()).bytes, 65536u);
  CHECK_EQ(r.memory->find(bytes().data() + 65535).bytes, 1u);
  CHECK_EQ(r.memory->find(bytes().data() + 65536).lkey, r.memory->rkeys()[1]);
  CHECK_EQ(r.memory->find(bytes().data() + 299999).bytes, 1u);
  CHECK_EQ(r.memory->find(bytes().data() + 300000).bytes, 0u);
  CHECK_EQ(r.memory->find(bytes().data() + 500000).bytes, 1u);
  CHECK_EQ(r.memory->find(nullptr).bytes, 0u);
  CHECK(r.memory->find(bytes().data()).readable);
  CHECK(has(r.notes, "by address, host memory, 5 chunk(s): the first way that was tried"));
}

TEST(transport_verbs_memory_falls_back_and_says_so) {
  fake::Options o;
  const Registered first = enlist(o, 5);
  CHECK(has(first.notes, "registered: dma-buf, 5 chunk(s): the first way"));
  CHECK(!first.memory->find(bytes().data()).readable);  // a device's: never copied by the CPU
  o.dmabuf_errno = EOPNOTSUPP;
  const Registered second = enlist(o, 5);
  CHECK(has(second.notes, "device memory, by a peer-memory module, 5 chunk(s): after dma-buf: "));
  CHECK(has(second.notes, "(errno 95)"));
  o.address_errno = EFAULT;
  const Registered third = enlist(o, 5);
  CHECK(has(third.notes, "plain ibv_reg_mr"));
  CHECK(has(third.notes, "(errno 14); device memory needs a dma-buf or a peer-memory module"));
  o.plain_errno = ENOMEM;
  const Registered none = enlist(o, 5);
  for (const char* part : {"dma-buf", "errno 95", "by address", "errno 14", "plain", "errno 12", "ulimit -l"})
    CHECK(has(none.error, part));
  CHECK_EQ(fake::Fabric::the().num_registrations(), 1u);  // the NIC's own page
}

TEST(transport_verbs_memory_a_chunk_that_fails_undoes_its_span) {
  fake::Options o;
  o.largest_registration = 40000;
  const Registered r = enlist(o, -1);
  CHECK(has(r.error, "errno 12"));
  CHECK_EQ(fake::Fabric::the().num_registrations(), 1u);  // the NIC's own page
  const Registered small = enlist(o, -1, 40000);
  CHECK_EQ(small.error, std::string());
  CHECK_EQ(fake::Fabric::the().num_registrations(), 10u);
}

TEST(transport_verbs_memory_relaxed_ordering_when_asked) {
  const Registered relaxed = enlist({}, -1);
  CHECK((fake::Fabric::the().last_access() & ibv::kAccessRelaxedOrdering) != 0);
  CHECK(has(relaxed.notes, "relaxed PCIe ordering"));
  const Registered strict = enlist({}, -1, 1 << 16, false);
  CHECK_EQ(fake::Fabric::the().last_access() & ibv::kAccessRelaxedOrdering, 0u);
  CHECK(has(strict.notes, "strict PCIe ordering"));
}

// Registered as more of it is asked for: in chunks, by a quarter more at least, and never for peers.
TEST(transport_verbs_memory_of_a_late_span_follows_what_is_asked_for) {
  fake::Options o;
  fake::Fabric& f = fake::Fabric::begin(o);
  std::vector<Note> notes;
  const VerbsNic nic(f.functions(), {"fake0", 1, -1}, {}, notes);
  TransportSettings s;
  s.local.add(Span{0, 4096, bytes().data()});
  s.local.add(Span{1 << 20, 800000, bytes().data() + 8192});
  s.fabric.late_span = 1;
  VerbsTuning t;
  t.chunk_bytes = 1 << 17;
  VerbsMemory memory(nic, s, t, notes);
  const u8* late = bytes().data() + 8192;
  CHECK_EQ(memory.rkeys().size(), 1u);
  CHECK_EQ(f.num_registrations(), 2u);
  CHECK_EQ(memory.find(late).bytes, 0u);
  memory.admit({200000, 0, {}});
  CHECK_EQ(f.num_registrations(), 4u);
  CHECK_EQ(f.last_access() & (ibv::kAccessLocalWrite | ibv::kAccessRemoteWrite | ibv::kAccessRemoteRead), 0u);
  CHECK_EQ(memory.find(late).bytes, 1u << 17);
  CHECK_EQ(memory.find(late + (1 << 17)).bytes, 200000u - (1 << 17));
  CHECK(memory.find(late).readable && memory.find(late).lkey != memory.find(late + (1 << 17)).lkey);
  CHECK_EQ(memory.find(late + 200000).bytes, 0u);
  CHECK_EQ(memory.find(late - 1).bytes, 0u);
  memory.admit({100, 0, {}});
  CHECK_EQ(f.num_registrations(), 4u);
  memory.admit({200001, 0, {}});
  CHECK_EQ(memory.find(late + 200000).bytes, 262144u - 200000u);  // pages of 64 KiB
  memory.admit({800000, 0, {}});
  CHECK_EQ(memory.find(late + 799999).bytes, 1u);
  std::string refused;
  try {
    memory.admit({800001, 0, {}});
  } catch (const std::runtime_error& e) { refused = e.what(); }
  CHECK(has(refused, "800001 bytes of a span that has 800000"));
  CHECK_EQ(memory.rkeys().size(), 1u);
}

TEST(transport_verbs_memory_of_a_late_span_that_a_nic_refuses) {
  fake::Options o;
  o.address_errno = o.plain_errno = ENOMEM;
  fake::Fabric& f = fake::Fabric::begin(o);
  std::vector<Note> notes;
  const VerbsNic nic(f.functions(), {"fake0", 1, -1}, {}, notes);
  TransportSettings s;
  s.local.add(Span{0, 800000, bytes().data()});
  s.fabric.late_span = 0;
  VerbsMemory memory(nic, s, {}, notes);
  std::string refused;
  try {
    memory.admit({65536, 0, {}});
  } catch (const std::runtime_error& e) { refused = e.what(); }
  CHECK(has(refused, "ulimit -l"));
  CHECK_EQ(memory.find(bytes().data()).bytes, 0u);
  f.options.address_errno = 0;  // there is more room now
  memory.admit({65536, 0, {}});
  CHECK_EQ(memory.find(bytes().data()).bytes, 65536u);
}

namespace {

constexpr u64 kNames = 1ull << 41, kUnit = 2 << 20;  // nothing is mapped there

TransportSettings with_late_names() {
  TransportSettings s;
  s.local.add(Span{0, 4096, bytes().data()});
  s.local.add(Span{1 << 20, 16 * kUnit, reinterpret_cast<u8*>(kNames)});
  s.fabric.late_span = 1;
  return s;
}

const u8* name(u64 offset) { return reinterpret_cast<const u8*>(kNames + offset); }

std::string why_not(const std::vector<std::unique_ptr<VerbsMemory>>& all, const Admission& wanted) {
  try {
    admit_to_all(all, wanted);
  } catch (const std::runtime_error& e) { return e.what(); }
  return "";
}

}  // namespace

// Each piece by a dma-buf of its own, from the descriptor's byte 0 on, under the span's addresses; for sources only, and
// no CPU may read it.
TEST(transport_verbs_memory_of_a_late_span_in_a_device) {
  fake::Fabric& f = fake::Fabric::begin({});
  std::vector<Note> notes;
  const VerbsNic nic(f.functions(), {"fake0", 1, -1}, {}, notes);
  VerbsTuning t;
  t.chunk_bytes = kUnit;
  VerbsMemory memory(nic, with_late_names(), t, notes);
  memory.admit({kUnit, 0x10000, {11}});
  CHECK_EQ(f.last_access() & (ibv::kAccessLocalWrite | ibv::kAccessRemoteWrite | ibv::kAccessRemoteRead), 0u);
  CHECK_EQ(memory.find(name(4096)).bytes, kUnit - 4096);
  CHECK(!memory.find(name(0)).readable);
  CHECK_EQ(memory.find(name(kUnit)).bytes, 0u);
  memory.admit({3 * kUnit, 0x90000, {12}});
  CHECK_EQ(f.dmabufs_.size(), 3u);
  for (u64 i = 0; i < 3; ++i) {
    CHECK_EQ(f.dmabufs_[i].fd, i == 0 ? 11 : 12);
    CHECK_EQ(f.dmabufs_[i].offset, i == 2 ? kUnit : 0u);
    CHECK_EQ(memory.find(name(i * kUnit)).bytes, kUnit);
  }
  CHECK(f.covering(memory.find(name(2 * kUnit)).lkey, kNames + 2 * kUnit, kUnit) != nullptr);
  memory.admit({7 * kUnit, 0xa0000, {13}});
  memory.admit({8 * kUnit, 0xb0000, {14}});
  CHECK_EQ(memory.find(name(8 * kUnit)).bytes, 0u);  // no more than was taken
  CHECK_EQ(memory.rkeys().size(), 1u);
}

// By the device's address under the span's, with a peer-memory module, where the NIC takes no dma-buf or there is none.
TEST(transport_verbs_memory_of_a_late_span_in_a_device_by_its_address) {
  for (const std::vector<int>& dmabufs : {std::vector<int>{}, std::vector<int>{11}}) {
    fake::Options o;
    o.dmabuf_errno = EOPNOTSUPP;
    fake::Fabric& f = fake::Fabric::begin(o);
    std::vector<Note> notes;
    const VerbsNic nic(f.functions(), {"fake0", 1, -1}, {}, notes);
    VerbsTuning t;
    t.chunk_bytes = kUnit;
    VerbsMemory memory(nic, with_late_names(), t, notes);
    memory.admit({2 * kUnit, 0x10000, dmabufs});
    CHECK_EQ(reinterpret_cast<u64>(f.last_address_), 0x10000 + kUnit);
    const VerbsMemory::Piece second = memory.find(name(kUnit));
    CHECK(second.bytes == kUnit && !second.readable);
    CHECK(f.covering(second.lkey, kNames + kUnit, kUnit) != nullptr);
  }
}

// One of two NICs refuses: the other has nothing either, so that no NIC ever sends from memory that was given up.
TEST(transport_verbs_memory_is_admitted_to_all_nics_or_to_none) {
  fake::Options o;
  o.num_devices = 2;
  fake::Fabric& f = fake::Fabric::begin(o);
  ibv::Functions refusing = f.functions();
  refusing.reg_dmabuf_mr = [](ibv::Pd*, u64, std::size_t, u64, int, int) -> ibv::Mr* {
    errno = ENOMEM;
    return nullptr;
  };
  const auto by_address = refusing.reg_mr_iova2;
  std::vector<Note> notes;
  const VerbsNic willing(f.functions(), {"fake0", 1, -1}, {}, notes), other(refusing, {"fake1", 1, -1}, {}, notes);
  std::vector<std::unique_ptr<VerbsMemory>> all;
  all.push_back(std::make_unique<VerbsMemory>(willing, with_late_names(), VerbsTuning{}, notes));
  all.push_back(std::make_unique<VerbsMemory>(other, with_late_names(), VerbsTuning{}, notes));
  refusing.reg_mr_iova2 = nullptr;
  const u32 before = f.num_registrations();
  const std::string why = why_not(all, {kUnit, 0x10000, {11}});
  CHECK(has(why, "dma-buf: ") && has(why, "ulimit -l"));
  CHECK(!has(why, "plain ibv_reg_mr: 0"));
  CHECK_EQ(f.num_registrations(), before);
  CHECK_EQ(all[0]->find(name(0)).bytes + all[1]->find(name(0)).bytes, 0u);
  refusing.reg_mr_iova2 = by_address;
  CHECK_EQ(why_not(all, {2 * kUnit, 0x90000, {12}}), "");
  CHECK_EQ(f.dmabufs_.back().fd, 12);
  CHECK(all[0]->find(name(0)).bytes == 2 * kUnit && all[1]->find(name(0)).bytes == 2 * kUnit);
}

// A span of several GiB, which nobody touches: each descriptor is registered from its own byte 0 on.
TEST(transport_verbs_memory_names_the_descriptor_of_each_chunk) {
  for (const u64 chunk : {kDmabufBytes, kDmabufBytes / 4}) {
    fake::Fabric& f = fake::Fabric::begin({});
    std::vector<Note> notes;
    const VerbsNic nic(f.functions(), {"fake0", 1, -1}, {}, notes);
    TransportSettings s;
    s.local.add(Span{0, 2 * kDmabufBytes + 5000, reinterpret_cast<u8*>(1ull << 40)});
    s.fabric.span_dmabuf_fds = {{11, 12, 13}};
    VerbsTuning t;
    t.chunk_bytes = chunk;
    const VerbsMemory memory(nic, s, t, notes);
    const u64 per = kDmabufBytes / chunk;
    CHECK_EQ(f.dmabufs_.size(), 2 * per + 1);
    for (u64 i = 0; i < f.dmabufs_.size(); ++i) {
      CHECK_EQ(f.dmabufs_[i].fd, static_cast<int>(11 + i / per));
      CHECK_EQ(f.dmabufs_[i].offset, i % per * chunk);
    }
  }
}
