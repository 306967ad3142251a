// y[l, y_first + n] = sum_k x[l, k] * w[n, k] in f32: logits of the embedding or head. Every row of w is summed in the
// same order in every tile, so that a row computed alone has the same bits.
#pragma once
#include "kernels/dense.hpp"
#include "tiles.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t DENSE_ROWS = 4;  // rows of w (one token) or rows of x (one row of w) that share their loads

// Two vectors of running sums, even and odd steps; they define a row's order of summation.
struct DenseSum {
  Vec even = splat(0), odd = splat(0);
  float tail = 0;
  float total() const { return sum(even + odd) + tail; }
};

// Multiplies R rows of w with one row of x.
template <Dtype D, uint32_t R>
static inline void dense_rows(const uint8_t* const* w, const float* x, uint32_t width, float* out) {
  DenseSum sums[R];
  uint32_t k = 0;
  for (; k + 2 * LANES <= width; k += 2 * LANES) {
    const Vec a = load(x + k), b = load(x + k + LANES);
    for (uint32_t r = 0; r < R; ++r) {
      prefetch(w[r] + row_bytes<D>(k) + AHEAD);
      sums[r].even = fma(load_dense<D>(w[r], k), a, sums[r].even);
      sums[r].odd = fma(load_dense<D>(w[r], k + LANES), b, sums[r].odd);
    }
  }
  for (; k < width; ++k)
    for (uint32_t r = 0; r < R; ++r) sums[r].tail += load_one<D>(w[r], k) * x[k];
  for (uint32_t r = 0; r < R; ++r) out[r] = sums[r].total();
}

// Multiplies one row of w, decoded part by part, with L rows of x.
template <Dtype D, uint32_t L>
static inline void decoded_row(const uint8_t* w, const float* x, uint32_t width, float* out) {
  DenseSum sums[L];
  float part[DECODE];
  for (uint32_t first = 0; first < width; first += DECODE) {
    const uint32_t count = smaller(DECODE, width - first);
    for (uint32_t line = 0; line < row_bytes<D>(count); line += 64) prefetch(w + row_bytes<D>(first) + line + AHEAD);
    decode_part<D>(w, first, count, part);
    uint32_t k = 0;
    for (; k + 2 * LANES <= count; k += 2 * LANES) {
      const Vec a = load(part + k), b = load(part + k + LANES);
      for (uint32_t l = 0; l < L; ++l) {
        const float* at = x + size_t(l) * width + first + k;
        sums[l].even = fma(a, load(at), sums[l].even);
        sums[l].odd = fma(b, load(at + LANES), sums[l].odd);
      }
    }
    for (; k < count; ++k)
      for (uint32_t l = 0; l < L; ++l) sums[l].tail += part[k] * x[size_t(l) * width + first + k];
  }
  for (uint32_t l = 0; l < L; ++l) out[l] = sums[l].total();
}

// Multiplies one row of q6_K with one row of x, as decoded_row, but without storing decoded values.
static inline float q6_k_row(const uint8_t* w, const float* x, uint32_t width) {
  DenseSum sums;
  for (uint32_t first = 0; first < width; first += 256, w += 210) {
    for (uint32_t line = 0; line < 256; line += 64) prefetch(w + line + AHEAD);
    const Q6 block(w);
    for (uint32_t k = 0; k < 256; k += 2 * LANES) {
      sums.even = fma(block.values(k), load(x + first + k), sums.even);
      sums.odd = fma(block.values(k + LANES), load(x + first + k + LANES), sums.odd);
    }
  }
  return sums.total();
}

template <Dtype D>
static inline void dense_tile(const Launch& launch, uint32_t l0, uint32_t l1, uint32_t n0, uint32_t n1) {
  const auto p = params_of<MatmulParams>(launch);
  const size_t stride = row_bytes<D>(p.width);
  const Runs<DENSE_ROWS> runs{n0, n1};
  const uint8_t* w = view<uint8_t>(launch, 1);
  float* y = view<float>(launch, 2) + p.y_first;
  float out[DENSE_ROWS];
  for (; l0 + DENSE_ROWS <= l1; l0 += DENSE_ROWS)
    for (uint32_t n = n0; n < n1; ++n) {
      decoded_row<D, DENSE_ROWS>(w + n * stride, view<float>(launch, 0) + size_t(l0) * p.width, p.width, out);
      for (uint32_t i = 0; i < DENSE_ROWS; ++i) y[size_t(l0 + i) * p.y_stride + n] = out[i];
    }
  for (; l0 < l1; ++l0) {
    const float* x = view<float>(launch, 0) + size_t(l0) * p.width;
    for (uint32_t i = 0; i < runs.length; ++i) {
      const uint8_t* rows[DENSE_ROWS];
      for (uint32_t r = 0; r < DENSE_ROWS; ++r) rows[r] = w + runs.row(i, r) * stride;
      if constexpr (D == F32 || D == F16 || D == BF16) {
        dense_rows<D, DENSE_ROWS>(rows, x, p.width, out);
      } else if constexpr (D == Q6_K) {
        for (uint32_t r = 0; r < DENSE_ROWS; ++r) out[r] = q6_k_row(rows[r], x, p.width);
      } else {
        for (uint32_t r = 0; r < DENSE_ROWS; ++r) decoded_row<D, 1>(rows[r], x, p.width, out + r);
      }
      for (uint32_t r = 0; r < DENSE_ROWS && runs.has(i, r); ++r) y[size_t(l0) * p.y_stride + runs.row(i, r)] = out[r];
    }
  }
}

static void matmul_dense(const Launch& launch, uint32_t begin, uint32_t end, uint8_t*) {
  const auto p = params_of<MatmulParams>(launch);
  with_dtype(launch.constants.dtype, [&](auto dtype) {
    for (uint32_t g = begin; g < end;) {
      const Tile tile(launch, g, end, p.outs, p.rows);
      dense_tile<decltype(dtype)::value>(launch, tile.t0, tile.t1, tile.n0, tile.n1);
      g = tile.next;
    }
  });
}

}  // namespace bitnet::BITNET_PATH
