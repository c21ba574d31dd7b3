// Opening a library that is there, one that is not, and one that is something else.
#include <stdexcept>

#include "native/check.h"
#include "transport/libfabric/library.h"

using namespace uccl;

namespace {

std::string refusal(const char* name) {
  try {
    fi::open_library(name);
  } catch (const std::runtime_error& e) { return e.what(); }
  return "";
}

}  // namespace

TEST(libfabric_library_says_what_is_missing_and_how_to_get_it) {
  const std::string absent = refusal("libuccl-no-such-library.so.1");
  CHECK(absent.find("libuccl-no-such-library.so.1") != std::string::npos);
  CHECK(absent.find("install libfabric") != std::string::npos);
  const std::string other = refusal("libc.so.6");
  CHECK(other.find("fi_version") != std::string::npos && other.find("install libfabric") != std::string::npos);
}

TEST(libfabric_library_is_opened_once) {
  if (!fi::library_problem().empty()) {
    CHECK_THROWS(std::runtime_error, fi::library());  // every time, with the same words
    CHECK_THROWS(std::runtime_error, fi::library());
    return;
  }
  CHECK_EQ(&fi::library(), &fi::library());
  const fi::Library& l = fi::library();
  CHECK(l.api >= fi::kOldestApi && l.api <= fi::kNewestApi && l.api <= l.release);
}

TEST(libfabric_library_versions_in_words) {
  CHECK_EQ(fi::version_text(fi::version(1, 17)), std::string("1.17"));
  CHECK_EQ(fi::version_text(fi::version(2, 0)), std::string("2.0"));
}
