// Small f32 products for attention: C[M, N] (+)= A[M, K] B[K, N], all row-major, N and ldb in whole vectors.
#pragma once
#include "launch.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t GEMM_ROWS = 6;
constexpr uint32_t GEMM_VECS = LANES == 8 ? 2 : 4;  // 6 x 2 of 16 registers, 6 x 4 of 32

template <uint32_t M, uint32_t V>
static inline void gemm_tile(const float* a, uint32_t lda, const float* b, uint32_t ldb, uint32_t k, float* c, uint32_t ldc,
                             bool add) {
  Vec sums[M][V];
  for (uint32_t m = 0; m < M; ++m)
    for (uint32_t v = 0; v < V; ++v) sums[m][v] = add ? load(c + size_t(m) * ldc + v * LANES) : splat(0);
  for (uint32_t i = 0; i < k; ++i, b += ldb) {
    Vec row[V];
    for (uint32_t v = 0; v < V; ++v) row[v] = load(b + v * LANES);
    for (uint32_t m = 0; m < M; ++m) {
      const Vec x = splat(a[size_t(m) * lda + i]);
      for (uint32_t v = 0; v < V; ++v) sums[m][v] = fma(x, row[v], sums[m][v]);
    }
  }
  for (uint32_t m = 0; m < M; ++m)
    for (uint32_t v = 0; v < V; ++v) store(c + size_t(m) * ldc + v * LANES, sums[m][v]);
}

template <uint32_t M>
static inline void gemm_rows(const float* a, uint32_t lda, const float* b, uint32_t ldb, uint32_t k, float* c, uint32_t ldc,
                             uint32_t n, bool add) {
  uint32_t i = 0;
  for (; i + GEMM_VECS * LANES <= n; i += GEMM_VECS * LANES)
    gemm_tile<M, GEMM_VECS>(a, lda, b + i, ldb, k, c + i, ldc, add);
  for (; i < n; i += LANES) gemm_tile<M, 1>(a, lda, b + i, ldb, k, c + i, ldc, add);
}

static inline void gemm(uint32_t m, const float* a, uint32_t lda, const float* b, uint32_t ldb, uint32_t k, float* c,
                        uint32_t ldc, uint32_t n, bool add) {
  uint32_t i = 0;
  for (; i + GEMM_ROWS <= m; i += GEMM_ROWS)
    gemm_rows<GEMM_ROWS>(a + size_t(i) * lda, lda, b, ldb, k, c + size_t(i) * ldc, ldc, n, add);
  for (; i < m; ++i) gemm_rows<1>(a + size_t(i) * lda, lda, b, ldb, k, c + size_t(i) * ldc, ldc, n, add);
}

}  // namespace bitnet::BITNET_PATH
