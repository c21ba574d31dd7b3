// What the proxy does for one command, to be counted by callgrind (bench/costs.py): the real ring, worker and loopback
// lane of two ranks, stepped by one thread, so that every run executes the same instructions. Each step has a function
// of its own, `step_<name>`; the program prints how many units each has handled. Counted at N and at 2 N batches, the
// difference leaves out start-up. What of it is the network's is in lane_costs.cpp.
//
//   proxy_costs [batches = 100]
#include "bench/native/steps.h"
#include "bench/native/two_ranks.h"
#include "engine/worker.h"
#include "ring/consumer.h"
#include "wire/immediate.h"

using namespace uccl;

namespace {

u64 pop(RingConsumer& consumer, u32 most) {
  Command command;
  u64 sum = 0;
  for (u32 i = 0; i < most && consumer.peek(&command); ++i) {
    sum += command.bytes;  // so that the command is really read
    consumer.advance();
  }
  consumer.publish_tail();
  return sum;
}

}  // namespace

STEP(ring_push, (const BenchRank& r, const Command* c, u32 n), r.push({c, n}))
STEP(ring_pop, (RingConsumer & consumer), pop(consumer, kBatch))
STEP(write_post, (Worker & w), w.turn())
STEP(write_arrival, (Worker & w), w.turn())
STEP(write_completion, (Worker & w), w.turn())
STEP(sequence_post, (Worker & w), w.turn())
STEP(sequence_arrival, (Worker & w), w.turn())
STEP(sequence_completion, (Worker & w), w.turn())
STEP(credit_post, (Worker & w), w.turn())
STEP(credit_arrival, (Worker & w), w.turn())
STEP(credit_completion, (Worker & w), w.turn())
STEP(single_post, (Worker & w), w.turn())
STEP(single_arrival, (Worker & w), w.turn())
STEP(single_completion, (Worker & w), w.turn())
STEP(idle_turn, (Worker & w), w.turn())

namespace {

// A rank's worker without a thread.
struct Stepped {
  explicit Stepped(BenchRank& rank)
      : faults(rank.control.data(), rank.peer_counters.data(), 2),
        membership(2, rank.peer_counters.data(), faults),
        worker(WorkerShared{rank.settings, rank.peer_counters.data(), membership, faults}, 0, rank.transport->lane(0),
               rank.worker_counters[0]) {}
  Faults faults;
  Membership membership;
  Worker worker;
};

void count_ring(u64 batches) {
  BenchRank rank(0);
  RingConsumer consumer(rank.ring.data(), kBenchCapacity);
  const std::vector<Command> group(kBatch, Command{Op::kWrite, 1, 1, 16, 32, 7168});
  for (u64 i = 0; i < batches; ++i) {
    cold<step_ring_push>(rank, group.data(), kBatch);
    require(cold<step_ring_pop>(consumer) == kBatch * 7168, "ring: a command was lost");
  }
}

// As a low-latency dispatch sends: rows, then their announcement; the flag of each epoch must rise.
void count_writes(u64 batches) {
  TwoRanks world;
  Stepped a(world.a), b(world.b);
  auto* header = reinterpret_cast<ExpectHeader*>(world.a.data.data());
  std::vector<Command> group(kBatch);
  for (u64 epoch = 1; epoch <= batches; ++epoch) {
    *header = ExpectHeader::make(epoch, kBatch - 1, 0, 0);
    const u32 key = epoch_key(Phase::kDispatch, epoch);
    std::fill_n(group.begin(), kBatch - 1, Command{Op::kWrite, 1, key, 64, 64, 16});
    const u64 to = kControlOffset + world.b.layout.expect(Phase::kDispatch, epoch, 0);
    group.back() = Command{Op::kCount, 1, key, 0, to, sizeof(ExpectHeader)};
    world.a.push(group);
    cold<step_write_post>(a.worker);
    cold<step_write_arrival>(b.worker);
    cold<step_write_completion>(a.worker);
    require(world.b.word(world.b.layout.flag(Phase::kDispatch, 0)) == epoch, "writes: the flag did not rise");
    require(read_word(*const_cast<u64*>(world.a.view().done)) == epoch * kBatch, "writes: not complete");
  }
}

// As a throughput dispatch sends: chunks in order on a channel.
void count_sequences(u64 batches) {
  TwoRanks world;
  Stepped a(world.a), b(world.b);
  std::vector<Command> group(kBatch);
  for (u64 i = 0; i < batches; ++i) {
    for (u32 k = 0; k < kBatch; ++k)
      group[k] = Command{Op::kSequence, 1, stream_key(Direction::kDispatch, 0, i * kBatch + k), 64, 64, 16};
    world.a.push(group);
    cold<step_sequence_post>(a.worker);
    cold<step_sequence_arrival>(b.worker);
    cold<step_sequence_completion>(a.worker);
    require(world.b.word(world.b.layout.tail(Direction::kDispatch, 0, 0)) == (i + 1) * kBatch, "chunks: not in order");
  }
}

void count_credits(u64 batches) {
  TwoRanks world;
  Stepped a(world.a), b(world.b);
  std::vector<Command> group(kBatch);
  for (u64 i = 1; i <= batches; ++i) {
    for (u32 k = 0; k < kBatch; ++k)
      group[k] = Command{Op::kCredit, 1, stream_key(Direction::kDispatch, k, i), 0, 0, 0};
    world.a.push(group);
    cold<step_credit_post>(a.worker);
    cold<step_credit_arrival>(b.worker);
    cold<step_credit_completion>(a.worker);
    const u64 word = world.b.word(world.b.layout.credit(Direction::kDispatch, 0, kBenchChannels - 1));
    require(word == i, "credits: the word did not follow");
  }
}

// One command a turn, with all that a turn costs beside it; then turns with nothing to do.
void count_singles(u64 batches) {
  TwoRanks world;
  Stepped a(world.a), b(world.b);
  for (u64 i = 0; i < batches; ++i) {
    const Command c{Op::kSequence, 1, stream_key(Direction::kDispatch, 0, i), 64, 64, 16};
    world.a.push({&c, 1});
    cold<step_single_post>(a.worker);
    cold<step_single_arrival>(b.worker);
    cold<step_single_completion>(a.worker);
  }
  require(world.b.word(world.b.layout.tail(Direction::kDispatch, 0, 0)) == batches, "singles: one was lost");
  for (u64 i = 0; i < 16 * batches; ++i) require(cold<step_idle_turn>(b.worker) == 0, "idle: something moved");
}

void print(u64 batches) {
  static const char* const batched[] = {"ring_push",        "ring_pop",       "write_post",       "write_arrival",
                                        "write_completion", "sequence_post",  "sequence_arrival", "sequence_completion",
                                        "credit_post",      "credit_arrival", "credit_completion"};
  static const char* const singles[] = {"single_post", "single_arrival", "single_completion"};
  std::printf("{");
  for (const char* name : batched)
    std::printf("\"%s\": %llu, ", name, static_cast<unsigned long long>(batches * kBatch));
  for (const char* name : singles) std::printf("\"%s\": %llu, ", name, static_cast<unsigned long long>(batches));
  std::printf("\"idle_turn\": %llu}\n", static_cast<unsigned long long>(16 * batches));
}

}  // namespace

int main(int argc, char** argv) {
  return run_steps("proxy_costs", argc > 1 ? argv[1] : nullptr, [](u64 batches) {
    count_ring(batches);
    count_writes(batches);
    count_sequences(batches);
    count_credits(batches);
    count_singles(batches);
    print(batches);
  });
}
