// libefa is found at run time, or its absence is said with the packages that bring it.
#include <stdexcept>
#include <string>

#include "native/check.h"
#include "transport/efa/library.h"

using namespace uccl;

TEST(transport_efa_library_names_the_packages) {
  for (const char* file : {"libefa-that-is-not-here.so.1", "libc.so.6"}) {  // absent; present, but another library
    try {
      const efadv::Library library(file);
      CHECK(false);
    } catch (const check::Failure&) { throw; } catch (const std::runtime_error& e) {
      CHECK(std::string(e.what()).find(file) != std::string::npos);
      CHECK(std::string(e.what()).find("ibverbs-providers") != std::string::npos);
    }
  }
}
