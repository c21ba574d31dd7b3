// The low-latency kernels that the library runs on a CPU with warps of one lane, for the reason that throughput.h has.
// Dispatch's sending half is not among them: a warp finds runs of rows for another node with a lane a token.
#pragma once
#include "kernels/cpu/launch.h"
#include "kernels/launch/low_latency.h"

namespace uccl::cpu {

// Each returns when its last block has ended; throws what simt::launch does.
void low_latency_dispatch_recv(const DispatchReceiveArgs& args, const Shape& shape);
void low_latency_combine_send(const CombineSendArgs& args, const Shape& shape);
void low_latency_combine_reduce(const CombineReduceArgs& args, const Shape& shape);
void low_latency_combine_recv(const CombineReceiveArgs& args, const Shape& shape);

}  // namespace uccl::cpu
