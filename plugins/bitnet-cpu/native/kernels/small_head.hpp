// The exact small head: which rows of an f16 table can hold the k largest logits, told from an int8 copy of half the
// size. With c the copy of row n, s its scale and e its error norm, |w . x - s c . x| <= |w - s c| |x| (Cauchy-Schwarz),
// so row n's logit lies within e |x| of its draft. Rows that may be among the k largest are computed from f16, with the
// same bits as matmul_dense; the drafts of all others are smaller than the k-th of those. So argmax and top_k over the
// mixed logits are those of the f16 table. Where a draft is not finite, all rows are
// computed.
//
// Views: 0 x f32[width], 1 table f16[outs, width], 2 logits f32[outs], 3 codes i8[outs, width], 4 scale f32[outs],
// 5 error f32[outs], 6 state u32[1 + outs]: count, then rows. Parameters: outs, width, k.
#pragma once
#include "kernels/matmul_dense.hpp"

namespace bitnet::BITNET_PATH {

// Rows of workgroup g of launch.workgroups.
static inline uint32_t first_row(const Launch& launch, uint32_t outs, uint32_t g) {
  return uint32_t(uint64_t(outs) * g / launch.workgroups);
}

static inline float norm2(const float* x, uint32_t n) {
  double total = 0;
  for (uint32_t i = 0; i < n; ++i) total += double(x[i]) * x[i];
  return float(std::sqrt(total) * 1.000001);
}

// Fills codes, scale and error from the table. The error covers the rounding of both f32 sums, draft and exact: each is
// within width * 2^-24 * |w| |x|, and |s c| <= 1.01 |w|.
static void small_head_build(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const auto p = params_of<SmallHeadParams>(launch);
  auto* row = reinterpret_cast<float*>(scratch);
  const uint32_t last = first_row(launch, p.outs, end);
  for (uint32_t n = first_row(launch, p.outs, begin); n < last; ++n) {
    for (uint32_t k = 0; k < p.width; k += DECODE)
      decode_part<F16>(view<uint8_t>(launch, 1) + size_t(n) * p.width * 2, k, smaller(DECODE, p.width - k), row + k);
    const float most = absmax(row, p.width), scale = most / 127.0f, inverse = most > 0 ? 127.0f / most : 0.0f;
    int8_t* codes = view<int8_t>(launch, 3) + size_t(n) * p.width;
    float error = 0, length = 0;
    for (uint32_t k = 0; k < p.width; ++k) {
      const float code = most > 0 ? (row[k] * inverse + 0x1.8p23f) - 0x1.8p23f : 0.0f;  // most < 0: a row with NaN or Inf
      codes[k] = int8_t(code);
      const float apart = row[k] - code * scale;
      error += apart * apart;
      length += row[k] * row[k];
    }
    const float rounding = 2.1f * float(p.width + 64) * 0x1p-24f;
    view<float>(launch, 4)[n] = most < 0 ? NAN : scale;
    view<float>(launch, 5)[n] = std::sqrt(error) * 1.001f + rounding * std::sqrt(length);
  }
}

// logits[n] = scale[n] * codes[n] . x
static void small_head_draft(const Launch& launch, uint32_t begin, uint32_t end, uint8_t*) {
  const auto p = params_of<SmallHeadParams>(launch);
  const float* x = view<float>(launch, 0);
  const uint32_t last = first_row(launch, p.outs, end);
  for (uint32_t n = first_row(launch, p.outs, begin); n < last; n += DENSE_ROWS) {
    const int8_t* rows[DENSE_ROWS];
    DenseSum sums[DENSE_ROWS];
    for (uint32_t r = 0; r < DENSE_ROWS; ++r) rows[r] = view<int8_t>(launch, 3) + size_t(smaller(n + r, last - 1)) * p.width;
    uint32_t k = 0;
    for (; k + 2 * LANES <= p.width; k += 2 * LANES) {
      const Vec a = load(x + k), b = load(x + k + LANES);
      for (uint32_t r = 0; r < DENSE_ROWS; ++r) {
        prefetch(rows[r] + k + size_t(DENSE_ROWS) * p.width);
        sums[r].even = fma(load_i8(rows[r] + k), a, sums[r].even);
        sums[r].odd = fma(load_i8(rows[r] + k + LANES), b, sums[r].odd);
      }
    }
    for (; k < p.width; ++k)
      for (uint32_t r = 0; r < DENSE_ROWS; ++r) sums[r].tail += float(rows[r][k]) * x[k];
    for (uint32_t r = 0; r < smaller(DENSE_ROWS, last - n); ++r)
      view<float>(launch, 2)[n + r] = sums[r].total() * view<float>(launch, 4)[n + r];
  }
}

// The k-th largest of the drafts' lower bounds, NaN if a draft or bound is not finite. best: k values of scratch.
static inline float kth_lower_bound(const float* drafts, const float* error, float length, uint32_t outs, uint32_t k, float* best) {
  uint32_t count = 0;
  const auto offer = [&](float low) {
    if (count == k && !(low > best[k - 1])) return;
    uint32_t at = count < k ? count++ : k - 1;
    for (; at > 0 && low > best[at - 1]; --at) best[at] = best[at - 1];
    best[at] = low;
  };
  Vec poison = splat(0);
  float bad = 0;
  for (uint32_t n = 0; n < outs;) {
    if (count == k && n + LANES <= outs) {
      const Vec low = load(drafts + n) - load(error + n) * splat(length);
      poison = fma(low, splat(0), poison);
      if (any_greater(low, splat(best[k - 1])))
        for (uint32_t i = n; i < n + LANES; ++i) offer(drafts[i] - error[i] * length);
      n += LANES;
    } else {
      const float low = drafts[n] - error[n] * length;
      bad += low * 0.0f;
      offer(low);
      ++n;
    }
  }
  return best[k - 1] + bad + sum(poison);
}

// Lists the rows in question: those whose upper bound reaches the threshold; all of them where that is NaN.
static void small_head_select(const Launch& launch, uint32_t, uint32_t, uint8_t* scratch) {
  const auto p = params_of<SmallHeadParams>(launch);
  const float *drafts = view<float>(launch, 2), *error = view<float>(launch, 5);
  const float length = norm2(view<float>(launch, 0), p.width);
  const float threshold = kth_lower_bound(drafts, error, length, p.outs, p.k, reinterpret_cast<float*>(scratch));
  uint32_t* state = view<uint32_t>(launch, 6);
  uint32_t count = 0;
  for (uint32_t n = 0; n < p.outs; n += LANES) {
    const uint32_t end = n + smaller(LANES, p.outs - n);
    if (threshold == threshold && end - n == LANES) {
      const Vec high = load(drafts + n) + load(error + n) * splat(length);
      if (!any_greater(high, splat(std::nextafterf(threshold, -INFINITY)))) continue;
    }
    for (uint32_t i = n; i < end; ++i)
      if (!(drafts[i] + error[i] * length < threshold)) state[1 + count++] = i;
  }
  state[0] = count;
}

// Exact logits of the listed rows.
static void small_head_rescore(const Launch& launch, uint32_t begin, uint32_t end, uint8_t*) {
  const auto p = params_of<SmallHeadParams>(launch);
  const uint32_t* state = view<uint32_t>(launch, 6);
  const uint32_t last = first_row(launch, state[0], end);
  for (uint32_t i = first_row(launch, state[0], begin); i < last; i += DENSE_ROWS) {
    const uint8_t* rows[DENSE_ROWS];
    float out[DENSE_ROWS];
    for (uint32_t r = 0; r < DENSE_ROWS; ++r)
      rows[r] = view<uint8_t>(launch, 1) + size_t(state[1 + smaller(i + r, last - 1)]) * p.width * 2;
    dense_rows<F16, DENSE_ROWS>(rows, view<float>(launch, 0), p.width, 0, out);
    for (uint32_t r = 0; r < smaller(DENSE_ROWS, last - i); ++r) view<float>(launch, 2)[state[1 + i + r]] = out[r];
  }
}

}  // namespace bitnet::BITNET_PATH
