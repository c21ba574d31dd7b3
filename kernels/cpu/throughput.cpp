// Instantiates the throughput kernels at the width that this library is compiled with (cmake/libraries.cmake: 1).
#include "kernels/cpu/throughput.h"

namespace uccl::cpu {

static_assert(simt::kWarp == 1);

void throughput_layout(const LayoutArgs& args, const Shape& shape) { run(uccl::throughput_layout, args, shape); }
void throughput_counts(const CountsArgs& args, const Shape& shape) { run(uccl::throughput_counts, args, shape); }
void throughput_dispatch(const DispatchArgs& args, const Shape& shape) { run(uccl::throughput_dispatch, args, shape); }
void throughput_combine(const CombineArgs& args, const Shape& shape) { run(uccl::throughput_combine, args, shape); }
void throughput_settle(const SettleArgs& args, const Shape& shape) { run(uccl::throughput_settle, args, shape); }

}  // namespace uccl::cpu
