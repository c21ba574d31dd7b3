// What peers need to map a rank: who it is, its mailbox, and which memfd holds which span of its flat offset space.
//
//   "shm1 <pid> <mailbox fd> <capacity> <offset>,<bytes>,<fd> ..."
#pragma once
#include <string>
#include <vector>

#include "wire/types.h"

namespace uccl {

struct SharedMemoryAddress {
  struct MappableSpan {
    u64 offset, bytes;
    int fd;
  };
  int pid = 0;
  int mailbox_fd = -1;
  u32 capacity = 0;
  std::vector<MappableSpan> spans;

  std::string text() const;
  // Throws std::runtime_error that quotes the text and says what is wrong with it.
  static SharedMemoryAddress parse(const std::string& text);
};

}  // namespace uccl
