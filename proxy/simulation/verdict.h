// What must hold when a run is over, beside the rows: without a lethal fault nobody failed and nothing is left over;
// with one, every rank that could not finish says so, in time, and names a rank and a phase that can be right.
#pragma once
#include <string>

#include "simulation/driver.h"

namespace uccl::simulation {

// "" or what is wrong.
std::string judge(const Case& c, World& world, const Driver& driver);

}  // namespace uccl::simulation
