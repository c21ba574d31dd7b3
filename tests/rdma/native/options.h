// What the programs of this folder are told: `name=value` arguments, each known and checked, and the transport settings
// that follow from them. Any family may be named, so that the programs can be tried without a NIC.
#pragma once
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace uccl::testing {

class Options {
 public:
  // Throws std::invalid_argument for an argument that is not in `defaults`, which holds every name.
  Options(int argc, char** argv, std::map<std::string, std::string> defaults) : values_(std::move(defaults)) {
    for (int i = 1; i < argc; ++i) {
      const std::string argument = argv[i];
      const std::size_t equals = argument.find('=');
      const std::string name = argument.substr(0, equals);
      if (equals == std::string::npos || values_.find(name) == values_.end())
        throw std::invalid_argument("argument '" + argument + "'; known are: " + known());
      values_[name] = argument.substr(equals + 1);
    }
  }

  const std::string& text(const std::string& name) const { return values_.at(name); }
  u64 number(const std::string& name) const {
    const std::string& value = text(name);
    if (value.empty() || value.find_first_not_of("0123456789") != std::string::npos || value.size() > 18)
      throw std::invalid_argument(name + "=" + value + " is no whole number");
    return std::strtoull(value.c_str(), nullptr, 10);
  }
  u32 small(const std::string& name) const { return static_cast<u32>(number(name)); }
  std::vector<std::string> list(const std::string& name) const {
    std::vector<std::string> all;
    const std::string& value = text(name);
    for (std::size_t at = 0; at < value.size();) {
      const std::size_t comma = std::min(value.find(',', at), value.size());
      all.push_back(value.substr(at, comma - at));
      at = comma + 1;
    }
    return all;
  }

 private:
  std::string known() const {
    std::string all;
    for (const auto& [name, value] : values_) all += name + "=" + value + " ";
    return all;
  }
  std::map<std::string, std::string> values_;
};

// The arguments that every program has.
inline std::map<std::string, std::string> fabric_defaults() {
  return {{"family", "verbs"}, {"device", "rxe0"}, {"gid", "1"},    {"qps", "1"},
          {"timeout", "14"},   {"retries", "6"},   {"provider", ""}};
}

inline FabricSettings fabric_of(const Options& o, const std::string& device) {
  FabricSettings f;
  NicSettings nic;
  nic.device = device;
  nic.gid_index = static_cast<int>(o.small("gid"));
  f.nics.push_back(nic);
  f.provider = o.text("provider");
  f.queue_pairs = o.small("qps");
  f.timeout = o.small("timeout");
  f.retries = o.small("retries");
  return f;
}

// A text as a JSON string.
inline std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + "\"";
}

}  // namespace uccl::testing
