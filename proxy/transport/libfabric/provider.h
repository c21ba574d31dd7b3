// Which libfabric provider is used and what it gives: asked for what we want most first, then for less, and every
// answer is kept as a note. Nothing is opened here.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "transport/libfabric/address.h"
#include "transport/libfabric/library.h"
#include "transport/transport.h"

namespace uccl {

struct FreeInfo {
  void operator()(fi::Info* info) const { fi::library().freeinfo(info); }
};
using InfoPointer = std::unique_ptr<fi::Info, FreeInfo>;

// What the data path has to respect of a provider.
struct ProviderLimits {
  std::string name;  // as the library calls it, "tcp;ofi_rxm"
  std::string form;  // of several that a provider has, which do not understand each other: "efa-direct"; else its name
  std::string device;
  u64 max_message = 0;  // bytes of one write
  u64 inject_bytes = 0;  // up to here a source may lie in unregistered memory
  u32 cq_data_bytes = 0;
  u32 key_bytes = 0;
  u32 transmit_entries = 0;
  int mr_mode = 0;
  bool ordered = false;  // a write's data lands before a later write's to the same peer
  bool delivery_complete = false;  // a completion means: data and immediate have reached the receiver
  bool source_address = false;  // says which endpoint an arrival came from
  bool device_memory = false;  // FI_HMEM was asked for and granted
  bool domain_per_lane = false;  // objects of a domain may not be used by two threads
  // Sources must be registered, and not beside lanes that work.
  bool registers_at_once() const;
};

ProviderLimits limits_of(const fi::Info& info);
// Why the transport cannot use a provider with these limits; "" when it can.
std::string limits_problem(const ProviderLimits& limits);
SourceForm source_form_of(const ProviderLimits& limits);

struct Provider {
  InfoPointer info;
  ProviderLimits limits;
  std::vector<Note> notes;
};

// The provider that settings.fabric.provider names ("" = tcp), on `device` ("" = the first that fits). Throws
// std::runtime_error that says what was asked for, what the library answered, and what to do.
Provider choose_provider(const TransportSettings& settings, const std::string& device);

}  // namespace uccl
