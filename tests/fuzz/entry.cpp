// The list of targets, and libFuzzer's way in: UCCL_EP_FUZZ_TARGET names the target. In native_tests nobody calls it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "fuzz/targets.h"

namespace uccl::fuzz {
namespace {

u64 work = 0;

}  // namespace

u64 work_done() { return work; }
void count_work(u64 n) { work += n; }

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {
      {"tcp_frames", tcp_frames, tcp_frames_seeds},
      {"tcp_handshake", tcp_handshake, tcp_handshake_seeds},
      {"arrivals", arrivals, arrivals_seeds},
      {"addresses", addresses, addresses_seeds},
      {"memory", memory, memory_seeds},
  };
  return all;
}

}  // namespace uccl::fuzz

namespace {

const uccl::fuzz::Target& chosen() {
  const char* name = std::getenv("UCCL_EP_FUZZ_TARGET");
  for (const auto& target : uccl::fuzz::targets())
    if (name != nullptr && std::strcmp(name, target.name) == 0) return target;
  std::fprintf(stderr, "UCCL_EP_FUZZ_TARGET is '%s', allowed: tcp_frames, tcp_handshake, arrivals, addresses, memory\n",
               name ? name : "");
  std::exit(2);
}

}  // namespace

// Before the corpus is read: adds the seeds to the folder that UCCL_EP_FUZZ_SEEDS names.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* folder = std::getenv("UCCL_EP_FUZZ_SEEDS");
  int n = 0;
  if (folder != nullptr)
    for (const auto& seed : chosen().seeds()) {
      std::ofstream file(std::string(folder) + "/seed-" + std::to_string(n++), std::ios::binary);
      file.write(reinterpret_cast<const char*>(seed.data()), static_cast<std::streamsize>(seed.size()));
    }
  std::atexit([] { std::fprintf(stderr, "work: %llu\n", uccl::fuzz::work_done()); });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uccl::u8* data, std::size_t size) {
  static const uccl::fuzz::Target& target = chosen();
  target.run({data, size});
  return 0;
}
