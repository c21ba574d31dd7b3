// Whether an engine can be built from these settings. Control path only.
#pragma once
#include "engine/engine.h"

namespace uccl {

inline constexpr u32 kMaxWorkers = 256;

// Throws std::invalid_argument that names the field, its value and what is allowed.
void check_settings(const EngineSettings& settings, const WorkerCounters* worker_counters,
                    const PeerCounters* peer_counters);

}  // namespace uccl
