// The low-latency kernels that the library runs on a CPU with warps of one lane, for the reason that throughput.h has.
// Dispatch's sending half is not among them: a warp finds runs of rows for another node with a lane a token.
#pragma once
#include "kernels/cpu/launch.h"
#include "kernels/low_latency/combine_recv.h"
#include "kernels/low_latency/combine_reduce.h"
#include "kernels/low_latency/combine_send.h"
#include "kernels/low_latency/dispatch_recv.h"

namespace uccl::cpu {

// Each returns when its last block has ended; throws what simt::launch does.
void low_latency_dispatch_recv(const DispatchReceiveArgs& args, const Launch& launch);
void low_latency_combine_send(const CombineSendArgs& args, const Launch& launch);
void low_latency_combine_reduce(const CombineReduceArgs& args, const Launch& launch);
void low_latency_combine_recv(const CombineReceiveArgs& args, const Launch& launch);

}  // namespace uccl::cpu
