// The boundary: a launch that passes `prepare` touches nothing outside its views.
#pragma once
#include <stdexcept>
#include <string>

#include "launch.hpp"

namespace bitnet {

// The launch cannot be run as described; the text says which binding or parameter, and why.
struct LaunchFault : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// The kernel cannot be compiled with these constants.
struct Unsupported : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// Index of a catalogue name; Unsupported if this device has no such kernel.
KernelId kernel_id(const std::string& name);

// Unsupported if a constant or tile is not one that the kernel was made for.
void check_constants(KernelId id, const Constants& constants);

// Fills run, workgroups and scratch of a launch whose other fields are set. LaunchFault if a view is too small or not
// aligned, or a parameter or the grid makes no sense.
void prepare(Launch& launch, size_t view_count, const Path& path);

// Whether `launch` may run while `before` runs: products of the same activations, into columns behind those of `before`.
bool may_run_beside(const Launch& before, const Launch& launch);

}  // namespace bitnet
