// Error numbers in words, and what they say about a peer.
#include <cerrno>

#include "native/check.h"
#include "transport/libfabric/codes.h"

using namespace uccl;

TEST(libfabric_codes_in_words) {
  CHECK_EQ(libfabric_code_text(0), std::string());
  for (int code = 1; code < 300; ++code) CHECK(!libfabric_code_text(code).empty());
  CHECK(libfabric_code_text(266).find("memory key") != std::string::npos);
  CHECK(libfabric_code_text(ECONNREFUSED).find("process has ended") != std::string::npos);
  CHECK_EQ(libfabric_code_text(299), std::string("libfabric error 299"));
  CHECK_EQ(explain_code("libfabric", 266), libfabric_code_text(266));
  CHECK_EQ(explain_code("libfabric", 0), std::string());
}

TEST(libfabric_codes_tell_a_lost_peer_from_a_network_fault) {
  for (const int code : {ECONNREFUSED, ECONNRESET, ENOTCONN, EPIPE, ETIMEDOUT, EHOSTUNREACH}) {
    CHECK(libfabric_fault_of(code) == PeerFault::kLost);
  }
  for (const int code : {EIO, EACCES, 256, 264, 266, 268}) CHECK(libfabric_fault_of(code) == PeerFault::kNetwork);
}
