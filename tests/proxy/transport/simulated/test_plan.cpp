// Profiles by name and faults in words.
#include <stdexcept>

#include "native/check.h"
#include "transport/simulated/plan.h"

TEST(simulated_plan_profiles_have_names) {
  using namespace uccl;
  CHECK(link_profile("rc").ordered && !link_profile("srd").ordered);
  CHECK_EQ(link_profile("srd").name, std::string("srd"));
  try {
    link_profile("wr_ids");
    CHECK(false);
  } catch (const std::invalid_argument& e) {
    const std::string text = e.what();
    CHECK(text.find("'wr_ids'") != std::string::npos && text.find("rc, srd") != std::string::npos);
  }
}

TEST(simulated_plan_faults_in_words) {
  using namespace uccl;
  FaultPlan p;
  p.source = 4;
  p.target = 7;
  p.begin_ns = 5000;
  for (const FaultPlanKind kind : {FaultPlanKind::kStall, FaultPlanKind::kLinkLoss, FaultPlanKind::kHalfOpen,
                                   FaultPlanKind::kDeath, FaultPlanKind::kSlow}) {
    p.kind = kind;
    const std::string text = describe(p);
    CHECK(text.find('4') != std::string::npos && text.find("5 us") != std::string::npos);
    CHECK_EQ(p.lethal(), kind != FaultPlanKind::kStall && kind != FaultPlanKind::kSlow);
  }
  CHECK(Perturbation{}.none() && !Perturbation{.delay_ns = 1}.none());
}
