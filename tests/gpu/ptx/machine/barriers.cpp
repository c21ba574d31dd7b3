// Where lanes wait for each other: of a warp, of a block, and at the end.
#include "lanes.h"

namespace ptx {

// Lanes of whole warps, in order: each knows what all did before.
void Machine::meet(Lane* const* lanes, u32 count) {
  if (!settings_.judge) return;
  Clock all;
  for (u32 first = 0; first < count; first += 32) {
    Clock::Leaf leaf{};
    for (u32 l = 0; l < 32; ++l) {
      leaf[l] = lanes[first + l]->clock;
      if (l == 0 || !lanes[first + l]->known.same_as(lanes[first + l - 1]->known)) all.learn(lanes[first + l]->known);
    }
    all.learn(lanes[first]->id, leaf);
  }
  for (u32 l = 0; l < count; ++l) {
    lanes[l]->known = all;
    ++lanes[l]->clock;
  }
}

void Machine::arrive_at_warp(Lane& lane, const Instruction& i) {
  Warp& warp = *lane.warp;
  if (warp.arrived != 0 && warp.at != lane.at)
    fail(lane, "other lanes of its warp wait at " + place(lane.block->launch.kernel_number, warp.at));
  if (warp.ended != 0) fail(lane, "a lane of its warp has ended, and this instruction waits for all of them");
  const Operand* const mask = i.op == Op::k_barwarp                             ? &i.from[0]
                              : i.op == Op::k_shflidx || i.op == Op::k_shflbfly ? &i.from[3]
                                                                                : &i.from[1];
  if (static_cast<u32>(lane.value(*mask)) != ~0u) fail(lane, "not all lanes are in its mask");
  warp.at = lane.at;
  if (++warp.arrived == 32) complete_warp(warp);
}

void Machine::complete_warp(Warp& warp) {
  Lane* lanes[32];
  u32 values[32];
  const Instruction& i = warp.lanes[0].code[warp.at];
  u32 ballot = 0, sum = 0;
  for (u32 l = 0; l < 32; ++l) {
    lanes[l] = warp.lanes + l;
    values[l] = static_cast<u32>(lanes[l]->value(i.from[0]));
    if (values[l] != 0) ballot |= 1u << l;
    sum += values[l];
  }
  for (u32 l = 0; l < 32; ++l) {
    const u32 other = static_cast<u32>(lanes[l]->value(i.from[1])) & 31;
    switch (i.op) {
      case Op::k_shflidx: lanes[l]->set(i.to[0], values[other]); break;
      case Op::k_shflbfly: lanes[l]->set(i.to[0], values[l ^ other]); break;
      case Op::k_ballot: lanes[l]->set(i.to[0], ballot); break;
      case Op::k_redux: lanes[l]->set(i.to[0], sum); break;
      default: break;
    }
    if (i.to[1] != kNoSlot) lanes[l]->set(i.to[1], 1);
    lanes[l]->block->launch.ready.push_back(lanes[l]);
  }
  if (i.op == Op::k_barwarp) meet(lanes, 32);  // shuffles and votes order no memory
  warp.arrived = 0;
}

void Machine::arrive_at_block(Lane& lane, const Instruction& i) {
  Block& block = *lane.block;
  if (block.arrived != 0 && block.at != lane.at)
    fail(lane, "other lanes of its block wait at " + place(block.launch.kernel_number, block.at));
  if (block.ended != 0) fail(lane, "a lane of its block has ended, and this barrier waits for all of them");
  block.at = lane.at;
  if (i.op == Op::k_barand) block.vote = block.vote && lane.value(i.from[0]) != 0;
  if (++block.arrived == block.lanes.size()) complete_block(block);
}

void Machine::complete_block(Block& block) {
  const Instruction& i = block.lanes[0].code[block.at];
  std::vector<Lane*> lanes;
  lanes.reserve(block.lanes.size());
  for (Lane& lane : block.lanes) {
    if (i.op == Op::k_barand) lane.set(i.to[0], block.vote);
    lanes.push_back(&lane);
    block.launch.ready.push_back(&lane);
  }
  meet(lanes.data(), static_cast<u32>(lanes.size()));
  block.arrived = 0;
  block.vote = true;
}

void Machine::end_lane(Lane& lane) {
  Block& block = *lane.block;
  if (lane.warp->arrived != 0) fail(lane, "it ends while lanes of its warp wait for all of them");
  if (block.arrived != 0) fail(lane, "it ends while lanes of its block wait in a barrier");
  ++lane.warp->ended;
  if (++block.ended == block.lanes.size()) end_block(block.launch, block);
}

}  // namespace ptx
