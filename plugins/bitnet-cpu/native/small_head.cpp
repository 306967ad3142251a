#include "small_head.hpp"

#include <algorithm>

#include "check.hpp"

namespace bitnet {

namespace {

constexpr uint32_t MOST_WIDTH = 16384;  // up to here the error norms hold their margin for f32 rounding
enum Step : uint32_t { BUILD, DRAFT, SELECT, RESCORE };

size_t codes_bytes(uint32_t outs, uint32_t width) { return (size_t(outs) * width + 63) / 64 * 64; }

}  // namespace

size_t SmallHead::bytes_of(uint32_t outs, uint32_t width) { return codes_bytes(outs, width) + size_t(outs) * 12 + 4; }

SmallHead::SmallHead(const Launch& dense, const Path& path, Pool& pool) : path_(path) {
  const auto p = params_of<MatmulParams>(dense);
  if (dense.kernel != MATMUL_DENSE || dense.constants.dtype != F16 || p.rows != 1 || p.width > MOST_WIDTH)
    throw LaunchFault("a small head copies the f16 table of a matmul_dense of one row");
  table_ = dense.views[1].data;
  outs_ = p.outs;
  width_ = p.width;
  data_.reset(static_cast<uint8_t*>(::operator new(bytes_of(outs_, width_), std::align_val_t(64))));
  const Launch build = part(dense, BUILD, std::max(1u, outs_ / 256));
  pool.reserve(build.scratch);
  pool.run(&build, 1);
}

Launch SmallHead::part(const Launch& dense, uint32_t step, uint32_t workgroups) const {
  Launch launch{};
  launch.run = path_.small_head[step];
  std::copy(dense.views, dense.views + 2, launch.views);
  launch.views[2] = {dense.views[2].data + size_t(params_of<MatmulParams>(dense).y_first) * 4, size_t(outs_) * 4};
  uint8_t* scale = data_.get() + codes_bytes(outs_, width_);
  launch.views[3] = {data_.get(), size_t(outs_) * width_};
  launch.views[4] = {scale, size_t(outs_) * 4};
  launch.views[5] = {scale + size_t(outs_) * 4, size_t(outs_) * 4};
  launch.views[6] = {scale + size_t(outs_) * 8, size_t(outs_) * 4 + 4};
  launch.params[0] = outs_;
  launch.params[1] = width_;
  launch.workgroups = workgroups;
  launch.scratch = std::max<size_t>(size_t(width_) * 4, 1024);
  return launch;
}

std::vector<Launch> SmallHead::launches(const Launch& dense, uint32_t k) const {
  const auto p = params_of<MatmulParams>(dense);
  if (dense.kernel != MATMUL_DENSE || p.rows != 1 || dense.views[1].data != table_ || p.outs != outs_ || p.width != width_)
    throw LaunchFault("the small head is a copy of another table");
  if (k == 0 || k > 256 || k > outs_) throw LaunchFault("a small head finds 1 to 256 logits");
  std::vector<Launch> steps = {part(dense, DRAFT, std::max(1u, outs_ / 32)), part(dense, SELECT, 1),
                               part(dense, RESCORE, std::max(1u, std::min(64u, outs_)))};
  for (Launch& step : steps) step.params[2] = k;
  return steps;
}

}  // namespace bitnet
