// An int8 copy of an f16 head, and the launches that find the largest logits with it; see kernels/small_head.hpp.
#pragma once
#include <memory>
#include <vector>

#include "launch.hpp"
#include "pool.hpp"

namespace bitnet {

class SmallHead {
 public:
  // Bytes that the copy of a table f16[outs, width] takes.
  static size_t bytes_of(uint32_t outs, uint32_t width);

  // Builds the copy of the table that `dense` (a prepared matmul_dense, one row, f16) multiplies. std::bad_alloc if
  // there is no memory; LaunchFault if `dense` is not of that kind.
  SmallHead(const Launch& dense, const Path& path, Pool& pool);

  // What takes the place of `dense`, whose logits only an argmax (k = 1) or a top_k reads. LaunchFault if `dense`
  // multiplies another table.
  std::vector<Launch> launches(const Launch& dense, uint32_t k) const;

 private:
  Launch part(const Launch& dense, uint32_t step, uint32_t workgroups) const;

  const Path& path_;
  const uint8_t* table_;
  uint32_t outs_, width_;
  std::unique_ptr<uint8_t, AlignedFree> data_;  // codes, scale, error, state
};

}  // namespace bitnet
