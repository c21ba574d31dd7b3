// What peers need to write to a rank over libfabric: its provider, and per lane an endpoint's name and where memory is.
//
//   "fi1 <provider> <source form> <lanes> [<endpoint name in hex> <mailbox address>,<key>,<bytes>
//                                          <spans> {<offset>,<bytes>,<address>,<key>}...]..."
#pragma once
#include <string>
#include <vector>

#include "wire/types.h"

namespace uccl {

// How an arrival's sender is known.
enum class SourceForm : u32 {
  kTag = 1,  // in the upper 32 bits of the CQ data: a number that the receiver gave to this sender only
  kAddress = 2,  // by the endpoint that the provider says it came from (FI_SOURCE)
  kImmediate = 3,  // by the immediate's own field: the group's ranks are trusted with it
};
const char* source_form_text(SourceForm form);

struct RemoteMemory {
  u64 offset = 0;  // in the rank's flat space
  u64 bytes = 0;
  u64 address = 0;  // what RMA calls it: a virtual address, or 0 where the provider counts from the region's start
  u64 key = 0;
};

struct LibfabricAddress {
  struct LaneAddress {
    std::string name;  // the endpoint's, as the provider has it; any bytes
    RemoteMemory mailbox;
    std::vector<RemoteMemory> spans;
  };
  std::string provider;
  SourceForm source_form = SourceForm::kTag;
  std::vector<LaneAddress> lanes;

  std::string text() const;
  // Throws std::runtime_error that quotes the text's beginning and says what is wrong with it.
  static LibfabricAddress parse(const std::string& text);
};

}  // namespace uccl
