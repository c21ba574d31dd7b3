// libibverbs is found at run time, or its absence is said with the packages that bring it.
#include <stdexcept>
#include <string>

#include "native/check.h"
#include "transport/verbs/library.h"

using namespace uccl;

TEST(transport_verbs_library_names_the_packages) {
  for (const char* file : {"libibverbs-that-is-not-here.so.1", "libc.so.6"}) {  // absent; present, but another library
    try {
      const ibv::Library library(file);
      CHECK(false);
    } catch (const check::Failure&) { throw; } catch (const std::runtime_error& e) {
      const std::string what = e.what();
      for (const char* part : {file, "libibverbs1", "RHEL"}) CHECK(what.find(part) != std::string::npos);
    }
  }
}
