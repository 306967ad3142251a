// The code paths that this machine can run.
#pragma once
#include <string>
#include <vector>

#include "launch.hpp"

namespace bitnet {

// Returns the paths that this CPU and operating system support, best first; never empty.
std::vector<const Path*> usable_paths();

// Returns the path of that name. Throws Unsupported if it is unknown or the CPU lacks it.
const Path& path_named(const std::string& name);

}  // namespace bitnet
