// Replays what is known: the seeds, what a few thousand changes of them give, and every file of tests/fuzz/corpus, which
// holds the inputs that once found a bug.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "fuzz/allowance.h"
#include "fuzz/targets.h"
#include "native/check.h"

using namespace uccl;

namespace {

void replay(const char* name, int changes) {
  for (const fuzz::Target& target : fuzz::targets()) {
    if (std::string(target.name) != name) continue;
    std::vector<std::vector<u8>> inputs = target.seeds();
    const std::filesystem::path folder = std::filesystem::path("tests/fuzz/corpus") / name;  // pytest runs at the root
    if (std::filesystem::is_directory(folder))
      for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        std::ifstream file(entry.path(), std::ios::binary);
        inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      }
    for (const auto& input : inputs) target.run(input);
    std::mt19937 random(1);
    for (int i = 0; i < changes; ++i) {
      std::vector<u8> input = inputs[random() % inputs.size()];
      for (u32 n = random() % 4; n > 0 && !input.empty(); --n)
        input[random() % input.size()] = static_cast<u8>(random());
      if (random() % 4 == 0) input.resize(random() % (input.size() + 20));
      target.run(input);
    }
    return;
  }
  check::fail(__FILE__, __LINE__, std::string("no target ") + name);
}

}  // namespace

TEST(fuzz_corpus_tcp_frames) { replay("tcp_frames", 4000); }
TEST(fuzz_corpus_tcp_handshake) { replay("tcp_handshake", 60); }  // a round of the handshake takes 10 ms
TEST(fuzz_corpus_arrivals) { replay("arrivals", 1000); }
TEST(fuzz_corpus_addresses) { replay("addresses", 4000); }
// Not under ThreadSanitizer: a flag that is changed at the wrong moment lets a rank read what another one writes.
#if !defined(__SANITIZE_THREAD__)
TEST(fuzz_corpus_memory) { replay("memory", 60); }  // worlds; many end at a deadline
#endif
TEST(fuzz_corpus_does_work) {
  const u64 before = fuzz::work_done();
  replay("tcp_frames", 10);
  CHECK(fuzz::work_done() > before);
}
TEST(fuzz_corpus_allowance_sees_what_is_allocated) {
  fuzz::Allowance enough(4096), none(0);
  none.check("nobody");
  std::vector<u8> bytes(1000, 1);
  CHECK_EQ(bytes[999], 1);
  enough.check("a thousand bytes");
  if (fuzz::counts_allocations()) CHECK_THROWS(check::Failure, none.check("a thousand bytes"));
}
