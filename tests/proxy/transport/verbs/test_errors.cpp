// Every status has words of its own, and says who is to blame.
#include <cerrno>
#include <cstring>
#include <set>

#include "native/check.h"
#include "transport/verbs/errors.h"

using namespace uccl;

TEST(transport_verbs_errors_every_status_is_explained) {
  std::set<std::string> seen;
  for (u32 s = 0; s <= ibv::kWcTmRndvIncomplete; ++s) {
    const std::string text = verbs_explain(kVerbsStatus | static_cast<int>(s));
    CHECK(text.find("ibv_wc_status " + std::to_string(s)) != std::string::npos);
    CHECK(text.find("usually: ") != std::string::npos);
    CHECK(seen.insert(text).second);
  }
  CHECK(verbs_explain(kVerbsStatus | 99).find("99, unknown") != std::string::npos);
  CHECK_EQ(verbs_explain(0), std::string());
  CHECK(verbs_explain(ENOMEM).find("errno 12") != std::string::npos);
  CHECK(verbs_explain(kVerbsEvent | int{ibv::kEventPortErr}).find("link") != std::string::npos);
  CHECK(verbs_explain(kVerbsEvent | int{ibv::kEventDeviceFatal}).find("removed") != std::string::npos);
  CHECK(verbs_explain(kVerbsEvent | 77).find("event 77") != std::string::npos);
}

TEST(transport_verbs_errors_blame) {
  CHECK(verbs_fault(ibv::kWcRetryExcErr) == PeerFault::kLost);
  CHECK(verbs_fault(ibv::kWcWrFlushErr) == PeerFault::kLost);
  CHECK(verbs_fault(ibv::kWcRemAccessErr) == PeerFault::kProtocol);
  CHECK(verbs_fault(ibv::kWcLocProtErr) == PeerFault::kProtocol);
  CHECK(verbs_fault(ibv::kWcFatalErr) == PeerFault::kNetwork);
  CHECK(verbs_fault(12345) == PeerFault::kNetwork);
}

TEST(transport_verbs_errors_reach_explain_code) {
  CHECK(explain_code("verbs", kVerbsStatus | int{ibv::kWcRetryExcErr}).find("retry") != std::string::npos);
  CHECK_EQ(explain_code("verbs", 0), std::string());
}

TEST(transport_verbs_errors_name_the_nic) {
  const int lost = kVerbsStatus | int{ibv::kWcRetryExcErr};
  const std::vector<std::string> nics = {"mlx5_0:1", "mlx5_3:1"};
  CHECK_EQ(explain_code("verbs", on_nic(lost, 1), nics), "mlx5_3:1: " + verbs_explain(lost));
  CHECK_EQ(explain_code("verbs", on_nic(ENOMEM, 0), nics), "mlx5_0:1: " + verbs_explain(ENOMEM));
  CHECK_EQ(explain_code("verbs", on_nic(lost, 2), nics), verbs_explain(lost));  // of another list
  CHECK_EQ(explain_code("verbs", lost, nics), verbs_explain(lost));
  CHECK_EQ(explain_code("tcp", -1, nics), std::string(std::strerror(-1)));
}
