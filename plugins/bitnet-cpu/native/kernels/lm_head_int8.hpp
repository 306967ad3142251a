// The exact int8 head: the largest logits of an f16 head w[outs, width] from an int8 copy of half its size. With c the
// copy of row n, s its scale and e its error norm, |w . x - s c . x| <= |w - s c| |x| (Cauchy-Schwarz), so row n's
// logit differs from its approximate logit by at most e |x|.
#pragma once
#include "kernels/matmul_dense.hpp"
#include "kernels/rows.hpp"
#include "kernels/top_k.hpp"

namespace bitnet::BITNET_PATH {

constexpr float PLANE_MOST = 16383;       // maximum of an int16 plane: in any assignment to lanes, products of DRAFT_COLUMNS columns
constexpr uint32_t DRAFT_COLUMNS = 4096;  // stay below 2^31

// Returns |x|, rounded up.
static inline float norm2(const float* x, uint32_t n) {
  constexpr uint32_t CHAINS = 8;  // independent chains of additions
  double totals[CHAINS] = {}, total = 0;
  uint32_t i = 0;
  for (; i + CHAINS <= n; i += CHAINS)
    for (uint32_t j = 0; j < CHAINS; ++j) totals[j] += double(x[i + j]) * x[i + j];
  for (; i < n; ++i) total += double(x[i]) * x[i];
  for (double part : totals) total += part;
  return float(std::sqrt(total) * 1.000001);
}

// Returns |y - scale q|^2 and |y|^2, in f32 for DECODE columns at a time; each y - scale q is within 2^-23 |y|.
static inline void squares(const float* y, const int8_t* q, float scale, uint32_t width, double* apart, double* length) {
  const Vec factor = splat(-scale);
  for (uint32_t first = 0; first < width; first += DECODE) {
    const uint32_t last = smaller(first + DECODE, width);
    Vec a = splat(0), l = splat(0);
    uint32_t k = first;
    for (; k + LANES <= last; k += LANES) {
      const Vec v = load(y + k), d = fma(load_i8(q + k), factor, v);
      a = fma(d, d, a);
      l = fma(v, v, l);
    }
    *apart += sum(a);
    *length += sum(l);
    for (; k < last; ++k) {
      const double d = double(y[k]) - double(q[k]) * scale;
      *apart += d * d;
      *length += double(y[k]) * y[k];
    }
  }
}

// codes[n, k] = round(w[n, k] / scale[n]), scale[n] = max|w[n]| / 127, error[n] >= |w[n] - scale[n] codes[n]| plus the
// rounding of both f32 sums, approximate and exact: each is within width * 2^-24 * |w| |x|, and |s c| <= 1.01 |w|.
static void pack_head(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const auto p = params_of<PackParams>(launch);
  auto* row = reinterpret_cast<float*>(scratch);
  const uint32_t tile = launch.constants.tile_n, last = smaller(end * tile, p.outs);
  for (uint32_t n = begin * tile; n < last; ++n) {
    for (uint32_t k = 0; k < p.width; k += DECODE)
      decode_part<F16>(view<uint8_t>(launch, 0) + size_t(n) * p.width * 2, k, smaller(DECODE, p.width - k), row + k);
    const float most = absmax(row, p.width), scale = most / 127.0f;
    int8_t* codes = view<int8_t>(launch, 1) + size_t(n) * p.width;
    double error = 0, length = 0;
    if (most > 0) {
      codes_of(row, p.width, 1.0f / scale, codes);
      squares(row, codes, scale, p.width, &error, &length);
    } else {  // a row of zeros or, if most < 0, with NaN or Inf
      std::memset(codes, 0, p.width);
    }
    const double rounding = (3.0 * (p.width + 64) + 2) * 0x1p-24;
    view<float>(launch, 2)[n] = most < 0 ? NAN : scale;
    view<float>(launch, 3)[n] = most < 0 ? 0.0f : float((std::sqrt(error) + rounding * std::sqrt(length)) * 1.001);
  }
}

// A row of x as two planes of int16, x = scale[0] * plane 0 + scale[1] * plane 1 within 2^-28 of its largest number.
// There are no planes if a number is not finite, or if all are so small that the remainder for plane 1 underflows in
// f32.
struct Planes {
  int16_t* plane[2];
  float scale[2];
  bool sound;

  Planes(const float* x, uint32_t width, uint8_t* scratch) {
    plane[0] = reinterpret_cast<int16_t*>(scratch);
    plane[1] = plane[0] + width;
    const float most = absmax(x, width);
    sound = most > 1e-25f;
    if (!sound) return;
    const Vec coarse = splat(PLANE_MOST / most), fine = splat(PLANE_MOST * (PLANE_MOST / most)), step = splat(-most / PLANE_MOST);
    scale[0] = most / PLANE_MOST;
    scale[1] = scale[0] / PLANE_MOST;
    const auto split = [&](const float* from, int16_t* high, int16_t* low) {
      const Vec v = load(from), whole = round(v * coarse);
      store_words(high, whole);
      store_words(low, round(fma(whole, step, v) * fine));
    };
    uint32_t k = 0;
    for (; k + LANES <= width; k += LANES) split(x + k, plane[0] + k, plane[1] + k);
    float rest[LANES] = {};
    int16_t high[LANES], low[LANES];
    std::memcpy(rest, x + k, (width - k) * 4);
    split(rest, high, low);
    std::memcpy(plane[0] + k, high, (width - k) * 2);
    std::memcpy(plane[1] + k, low, (width - k) * 2);
  }
};

// out[r] = codes[r] . x for DENSE_ROWS rows, exact in integers for DRAFT_COLUMNS columns at a time.
static inline void approx_rows(const int8_t* const* codes, const Planes& x, uint32_t width, float* out) {
  for (uint32_t r = 0; r < DENSE_ROWS; ++r) out[r] = 0;
  for (uint32_t first = 0; first < width; first += DRAFT_COLUMNS) {
    const uint32_t last = smaller(first + DRAFT_COLUMNS, width);
    Ints sums[DENSE_ROWS][2];
    for (auto& row : sums) row[0] = row[1] = no_ints();
    uint32_t k = first;
    for (; k + 64 <= last; k += 64) {
      for (uint32_t r = 0; r < DENSE_ROWS; ++r) prefetch(codes[r] + k + AHEAD);
      for (uint32_t i = k; i < k + 64; i += WORDS) {
        const Words high = load_words(x.plane[0] + i), low = load_words(x.plane[1] + i);
        for (uint32_t r = 0; r < DENSE_ROWS; ++r) {
          const Words c = widen(codes[r] + i);
          sums[r][0] = add_products(sums[r][0], c, high);
          sums[r][1] = add_products(sums[r][1], c, low);
        }
      }
    }
    for (uint32_t r = 0; r < DENSE_ROWS; ++r) {
      int32_t high = 0, low = 0;
      for (uint32_t i = k; i < last; ++i) high += codes[r][i] * x.plane[0][i], low += codes[r][i] * x.plane[1][i];
      out[r] += sum(fma(to_f32(sums[r][0]), splat(x.scale[0]), to_f32(sums[r][1]) * splat(x.scale[1])));
      out[r] += float(high) * x.scale[0] + float(low) * x.scale[1];
    }
  }
}

// Returns codes . x in f32.
static inline float approx_row(const int8_t* codes, const float* x, uint32_t width) {
  Vec sums = splat(0);
  uint32_t k = 0;
  for (; k + LANES <= width; k += LANES) sums = fma(load_i8(codes + k), load(x + k), sums);
  float total = sum(sums);
  for (; k < width; ++k) total += float(codes[k]) * x[k];
  return total;
}

// logits[l, n] = scale[n] * codes[n] . x[l], and the best lower bound of every HEAD_GROUP rows n.
static void approx_logits(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const auto p = params_of<DraftParams>(launch);
  const float *scale = view<float>(launch, 2), *error = view<float>(launch, 3);
  const uint32_t groups = ceil_div(p.outs, HEAD_GROUP);
  for (uint32_t g = begin; g < end;) {
    const Tile tile(launch, g, end, p.outs, p.rows);
    const uint32_t l = tile.t0, n0 = tile.n0, n1 = tile.n1;
    g = tile.next;
    const float* x = view<float>(launch, 0) + size_t(l) * p.width;
    const Planes planes(x, p.width, scratch);
    float* logits = view<float>(launch, 4) + size_t(l) * p.stride;
    const Runs<DENSE_ROWS> runs{n0, n1};
    for (uint32_t i = 0; i < runs.length; ++i) {
      const int8_t* rows[DENSE_ROWS];
      float out[DENSE_ROWS];
      for (uint32_t r = 0; r < DENSE_ROWS; ++r) rows[r] = view<int8_t>(launch, 1) + size_t(runs.row(i, r)) * p.width;
      if (planes.sound) approx_rows(rows, planes, p.width, out);
      for (uint32_t r = 0; r < DENSE_ROWS && !planes.sound; ++r) out[r] = approx_row(rows[r], x, p.width);
      for (uint32_t r = 0; r < DENSE_ROWS && runs.has(i, r); ++r) logits[runs.row(i, r)] = out[r] * scale[runs.row(i, r)];
    }
    const float length = norm2(x, p.width);
    for (uint32_t n = n0; n < n1; n += HEAD_GROUP) {
      float best = -INFINITY, poison = 0;
      for (uint32_t i = n; i < smaller(n + HEAD_GROUP, n1); ++i) {
        const float low = logits[i] - error[i] * length;
        poison += low * 0.0f;  // NaN if it is not finite
        best = low > best ? low : best;
      }
      view<float>(launch, 5)[size_t(l) * groups + n / HEAD_GROUP] = best + poison;
    }
  }
}

// Returns the k-th largest of bound[count], NaN if one is NaN or if there are fewer.
static inline float kth_bound(const float* bound, uint32_t count, uint32_t k, uint8_t* scratch) {
  if (k > count) return NAN;
  TopK top{reinterpret_cast<int32_t*>(scratch), reinterpret_cast<float*>(scratch) + k, k, 0};
  for (uint32_t i = 0; i < count; ++i) top.offer(bound[i], i);
  return top.values[0] != top.values[0] ? NAN : top.values[k - 1];
}

// Computes exact logits, with the bits of matmul_dense, of the rows whose approximate logit may be among the k largest.
static void refine_logits(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const auto p = params_of<RescoreParams>(launch);
  const uint32_t groups = ceil_div(p.outs, HEAD_GROUP);
  for (uint32_t g = begin; g < end; ++g) {
    const uint32_t l = g / launch.grid[0], n0 = g % launch.grid[0] * launch.constants.tile_n;
    const uint32_t n1 = n0 + smaller(launch.constants.tile_n, p.outs - n0);
    const float *x = view<float>(launch, 0) + size_t(l) * p.width, *error = view<float>(launch, 2);
    float* logits = view<float>(launch, 4) + size_t(l) * p.stride;
    const float length = norm2(x, p.width);
    const float threshold = kth_bound(view<float>(launch, 3) + size_t(l) * groups, groups, p.k, scratch);
    for (uint32_t n = n0; n < n1; ++n) {
      if (logits[n] + error[n] * length < threshold) continue;
      const uint8_t* row = view<uint8_t>(launch, 1) + size_t(n) * p.width * 2;
      dense_rows<F16, 1>(&row, x, p.width, logits + n);
    }
  }
}

}  // namespace bitnet::BITNET_PATH
