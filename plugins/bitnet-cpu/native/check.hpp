// Validation of launches: a launch that passes `prepare` accesses nothing outside its views.
#pragma once
#include <stdexcept>
#include <string>

#include "launch.hpp"

namespace bitnet {

// The launch cannot run as described; the text names the binding or parameter, and the reason.
struct LaunchFault : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// The kernel cannot be compiled with these constants.
struct Unsupported : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// Returns the index of a catalogue name. Throws Unsupported if this device has no such kernel.
KernelId kernel_id(const std::string& name);

// Throws Unsupported if the kernel does not support a constant or tile.
void check_constants(KernelId id, const Constants& constants);

// Fills run, workgroups and scratch of a launch whose other fields are set. Throws LaunchFault if a view is too small
// or not aligned, or if a parameter or the grid is invalid.
void prepare(Launch& launch, size_t view_count, const Path& path);

// Returns whether `launch` may run while `before` runs: products of the same activations, into columns after those of
// `before`.
bool may_run_beside(const Launch& before, const Launch& launch);

}  // namespace bitnet
