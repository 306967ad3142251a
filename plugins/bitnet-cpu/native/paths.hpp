// Which code paths this machine can run.
#pragma once
#include <string>
#include <vector>

#include "launch.hpp"

namespace bitnet {

// Paths that this CPU and operating system support, best first; never empty.
std::vector<const Path*> usable_paths();

// The path of that name; Unsupported if it is unknown or the CPU lacks it.
const Path& path_named(const std::string& name);

}  // namespace bitnet
