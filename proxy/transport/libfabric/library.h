// libfabric.so.1, opened at run time: a machine without it imports, runs and says what is missing.
#pragma once
#include <string>

#include "transport/libfabric/abi.h"

namespace uccl::fi {

// The newest interface that abi.h describes. Older libraries are asked for their own.
inline constexpr u32 kNewestApi = version(1, 20);
inline constexpr u32 kOldestApi = version(1, 12);  // what is older lacks what we ask for or was never tried

struct Library {
  int (*getinfo)(u32 version, const char* node, const char* service, u64 flags, const Info* hints, Info** info);
  void (*freeinfo)(Info*);
  Info* (*dupinfo)(const Info*);
  int (*open_fabric)(FabricAttr*, Fabric**, void* context);
  u32 release;  // of the library: major << 16 | minor
  u32 api;      // what is asked for: the smaller of the release and kNewestApi
};

// The library, opened once for the life of the process. Throws std::runtime_error that says how to get it.
const Library& library();
// Why library() would throw; "" when it would not.
std::string library_problem();
std::string version_text(u32 version);

// Opens a library by name; what library() does with "libfabric.so.1". Throws std::runtime_error.
Library open_library(const char* name);

}  // namespace uccl::fi
