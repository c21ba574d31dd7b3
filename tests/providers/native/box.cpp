// The folder that stands for /sys, the choice of a driver's library, and the thread of all devices.
#include "providers/native/box.h"

#include <dlfcn.h>
#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "providers/native/doorbell.h"

namespace box {
namespace {

namespace fs = std::filesystem;
constexpr int kIdleTurns = 64;
constexpr auto kNap = std::chrono::microseconds(50);

std::string& folder() {
  static std::string f;
  return f;
}

void put(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text << "\n";
}

std::string gid_text(const Gid& g) {
  std::string s;
  char text[8];
  for (std::size_t i = 0; i < g.size(); i += 2) {
    std::snprintf(text, sizeof(text), "%s%02x%02x", i == 0 ? "" : ":", g[i], g[i + 1]);
    s += text;
  }
  return s;
}

// What /sys says of a device, as far as libibverbs, the providers, libfabric and our own choice of NICs read it behind
// what netlink says.
void describe(const Device& d, const std::string& driver) {
  const Identity& id = d.identity();
  const fs::path root = folder(), nic = root / "class/infiniband" / d.name(), port = nic / "ports/1";
  const fs::path pci = root / "devices/pci0000:00" / ("0000:00:0" + std::to_string(d.index() + 6) + ".0");
  fs::create_directories(pci);
  fs::create_directories(nic);
  fs::create_directories(root / "bus/pci/drivers" / driver);
  fs::create_directory_symlink(root / "bus/pci/drivers" / driver, pci / "driver");
  fs::create_directory_symlink(pci, nic / "device");
  static constexpr const char* kLinkLayers[] = {"Unspecified", "InfiniBand", "Ethernet"};
  put(root / "class/infiniband_verbs/abi_version", "6");
  put(port / "gids/0", gid_text(d.gid()));
  put(port / "gid_attrs/types/0", id.link_layer == ibv::kLinkEthernet ? "RoCE v2" : "IB/RoCE v1");
  put(port / "link_layer", kLinkLayers[id.link_layer]);
  put(port / "state", "4: ACTIVE");
  put(port / "rate", "400 Gb/sec (4X NDR)");
}

// The provider beside the libibverbs that is loaded, whichever release that is of.
std::string driver_beside(const std::string& provider) {
  void* library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(std::string("box: ") + dlerror());
  Dl_info where{};
  if (dladdr(dlsym(library, "ibv_get_device_list"), &where) == 0) throw std::runtime_error("box: where is libibverbs?");
  return fs::canonical(where.dli_fname).parent_path() / "libibverbs" / ("lib" + provider);
}

void run_devices(const std::atomic<bool>& stop) {
  for (int idle = 0; !stop.load(std::memory_order_relaxed);) {
    bool any = false;
    {
      const std::lock_guard lock(mutex());
      any = hand_out_stores();
      for (auto& d : devices()) any |= d->turn();
    }
    idle = any ? 0 : idle + 1;
    if (idle < kIdleTurns)
      sched_yield();
    else
      std::this_thread::sleep_for(kNap);
  }
}

}  // namespace

std::unique_ptr<Provider> make_provider(const std::string& name) {
  if (name == "efa") return make_efa();
  if (name == "mlx5") return make_mlx5();
  if (name == "bnxt_re") return make_bnxt_re();
  if (name == "irdma") return make_irdma();
  if (name == "ionic") return make_ionic();
  throw std::invalid_argument("box: no provider " + name + "; there are bnxt_re, efa, ionic, irdma and mlx5");
}

const std::string& device_name(unsigned index) { return devices()[index]->name(); }

const char* empty_folder() {
  static const std::string f = folder() + "/empty";
  return f.c_str();
}

const std::string& begin(const std::string& provider, unsigned num_devices) {
  char name[] = "/tmp/providers-XXXXXX";
  if (mkdtemp(name) == nullptr) throw std::runtime_error("box: no temporary folder");
  folder() = name;
  fs::create_directory(fs::path(name) / "empty");
  for (u32 i = 0; i < num_devices; ++i) {
    devices().push_back(std::make_unique<Device>(make_provider(provider), i));
    describe(*devices().back(), provider);
  }
  setenv("SYSFS_PATH", name, 1);
  setenv("RDMAV_DRIVERS", driver_beside(provider).c_str(), 1);
  static std::atomic<bool> stop{false};
  static std::thread thread(run_devices, std::cref(stop));
  std::atexit([] {
    stop = true;
    thread.join();
    std::error_code ignored;
    fs::remove_all(folder(), ignored);
  });
  return folder();
}

}  // namespace box
