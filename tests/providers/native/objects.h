// Objects of a device: made and removed as the kernel does it, which refuses to remove what another still needs.
#pragma once
#include "providers/native/commands.h"

namespace box {

struct WantedQueue {
  u32 entries;
  u64 user_handle;
};
struct WantedShared {
  u32 pd, entries, pieces;
};
struct WantedPair {
  u32 pd, sends_to, receives_to;
  bool is_shared;
  u32 shared;
  u64 user_handle;
  u32 type;
  bool all_signalled;
  ibv::QpCap cap;  // what was granted, afterwards
  u32 number = 0;
};

// Each: 0 or an errno.
int make_queue(Context& c, const WantedQueue& w, const Extra& e, u32& handle, u32& entries);
int make_shared(Context& c, const WantedShared& w, const Extra& e, u32& handle);
int make_pair(Context& c, WantedPair& w, const Extra& e);
int remove_queue(Device& d, u32 handle, u32& events);
int remove_shared(Device& d, u32 handle);
int remove_pair(Device& d, u32 number, u32& events);
int remove_domain(Device& d, u32 handle);
int remove_registration(Device& d, u32 key);
u32 add_registration(Device& d, const Memory& m);  // its key

}  // namespace box
