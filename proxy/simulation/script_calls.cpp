// What a rank's script calls of the driver, on the rank's fiber: launches, silence, barriers, leaving others out.
#include "engine/words.h"
#include "kernels/collective/barrier.h"
#include "simulation/driver.h"

namespace uccl::simulation {

const char* name_of(Kernel kernel) {
  static const char* const names[] = {"nothing",      "dispatch_send", "dispatch_recv", "combine_send",
                                      "combine_recv", "layout",        "counts",        "settle",
                                      "dispatch",     "combine",       "barrier",       "quiet"};
  return names[static_cast<u32>(kernel)];
}

void Driver::pause(bool progress) {
  progress_ = progress;
  simt::Fiber::leave();
}

void Driver::begin_launch(u32 rank, Kernel which) {
  RankState& s = ranks_[rank];
  if (s.launches++ == s.most_launches) throw RankLeft{};
  s.kernel = which;
  s.launching = s.first_pass = true;
  s.launched_ns = network_.now_ns();
  trace_ = mix(trace_ ^ (u64{rank} << 32 | static_cast<u32>(which)));
}

void Driver::end_launch(u32 rank) {
  RankState& s = ranks_[rank];
  s.launching = false;
  const u64 took_ns = network_.now_ns() - s.launched_ns;
  if (!network_.dead(rank) && took_ns > longest_.ns) longest_ = {took_ns, rank, s.kernel};
  if (world_.aborted(rank)) throw RankFailed{};
}

void Driver::quiet(u32 rank) {
  if (num_workers_ == 0) return;  // one node: no ring is read, none is written
  begin_launch(rank, Kernel::kQuiet);
  const RankContext& c = world_.context(rank);
  const u64 deadline = network_.now_ns() + world_.shape().timeout_ns;
  const auto wait = [&] {
    pause(false);
    return !world_.aborted(rank) && network_.now_ns() < deadline;
  };
  bool ok = true;
  for (u32 i = 0; ok && i < c.num_rings; ++i) {
    const Command command{.op = Op::kQuiet, .peer = rank};
    const RingView& ring = c.rings[i];
    const u64 ticket = simt::add_gpu(ring.head, 1ull);
    while (ok && !ring_room(ring, ticket)) ok = wait();
    if (ok) ring_store(ring, ticket, command);
    while (ok && read_word(*ring.done) <= ticket) ok = wait();
  }
  if (!ok) world_.raise_timeout(rank);
  end_launch(rank);
  // With `shrink`, what is on its way to a rank that is left out is given up.
  if (!world_.shape().shrink && network_.undelivered(rank) != 0)
    throw Violation("rank " + std::to_string(rank) + ": quiet returned while " +
                    std::to_string(network_.undelivered(rank)) + " writes had not arrived");
}

void Driver::barrier(u32 rank) {
  const u64 round = ++ranks_[rank].barriers;
  launch(rank, Kernel::kBarrier, rank_barrier, BarrierArgs{world_.context(rank), round}, simt::LaunchConfig{});
  for (u32 r = 0; r < world_.num_ranks(); ++r)
    if (ranks_[r].barriers < round && !world_.masked(rank, r) && !world_.departed(rank, r))
      throw Violation("rank " + std::to_string(rank) + ": barrier " + std::to_string(round) + " returned before rank " +
                      std::to_string(r) + " had entered it");
  const RingView& ring = world_.context(rank).rings[0];
  if (num_workers_ != 0 && read_word(*ring.done) != read_word(*ring.head))
    throw Violation("rank " + std::to_string(rank) + ": barrier " + std::to_string(round) +
                    " returned before all commands of its ring were complete");
}

void Driver::leave_out(u32 rank, u32 peer) {
  if (world_.masked(rank, peer)) return;
  world_.leave_out(rank, peer);
  mark_workers(rank, kTurnsToSeeExclusions);
}

}  // namespace uccl::simulation
