// Runs native tests: `--list`, or the names to run (all when none is given). A test that takes over its limit is ended
// by SIGALRM, which pytest reports with the test's name.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "native/check.h"

int main(int argc, char** argv) {
  const char* limit = std::getenv("UCCL_EP_NATIVE_TEST_LIMIT_S");
  int failed = 0, run = 0;
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for (const auto& c : check::cases()) std::printf("%s\t%s\n", c.name, c.file);
    return 0;
  }
  for (const auto& c : check::cases()) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) wanted |= std::strcmp(c.name, argv[i]) == 0;
    if (!wanted) continue;
    ++run;
    alarm(limit ? static_cast<unsigned>(std::atoi(limit)) : 60);
    try {
      c.body();
      std::printf("ok      %s\n", c.name);
    } catch (const std::exception& e) {
      ++failed;
      std::printf("FAILED  %s\n        %s\n", c.name, e.what());
    }
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed\n", run - failed, failed);
  return failed != 0 || run == 0;
}
