// A machine with NICs that are not there: real libibverbs and one of its provider libraries, the kernel's answers by us,
// and a thread that does what the hardware does with what the library wrote.
#pragma once
#include <string>

namespace box {

inline constexpr unsigned kMajor = 231, kFirstMinor = 192;

// Before libibverbs lists devices for the first time: `provider` as libibverbs names the driver ("efa", "mlx5"). Returns
// the folder that stands for /sys. Throws std::invalid_argument, std::runtime_error.
const std::string& begin(const std::string& provider, unsigned num_devices);
const char* empty_folder();
const std::string& device_name(unsigned index);

}  // namespace box
