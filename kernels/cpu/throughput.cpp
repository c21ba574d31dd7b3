// Instantiates the throughput kernels at the width that this library is compiled with (cmake/libraries.cmake: 1).
#include "kernels/cpu/throughput.h"

namespace uccl::cpu {

static_assert(simt::kWarp == 1);

void throughput_layout(const LayoutArgs& args, const Launch& launch) { run(uccl::throughput_layout, args, launch); }
void throughput_counts(const CountsArgs& args, const Launch& launch) { run(uccl::throughput_counts, args, launch); }
void throughput_dispatch(const DispatchArgs& args, const Launch& launch) {
  run(uccl::throughput_dispatch, args, launch);
}
void throughput_combine(const CombineArgs& args, const Launch& launch) { run(uccl::throughput_combine, args, launch); }
void throughput_settle(const SettleArgs& args, const Launch& launch) { run(uccl::throughput_settle, args, launch); }

}  // namespace uccl::cpu
