// The post() that every family shares: it judges each request once, then hands it to the family.
#include "transport/judging_lane.h"

namespace uccl {

std::size_t JudgingLane::post_some(std::span<const WriteRequest> requests) {
  return book_.judge(
      requests, [this](std::span<const WriteRequest> good) { return take(good); },
      [this](u32 peer, int code) { refuse(peer, code); });
}

}  // namespace uccl
