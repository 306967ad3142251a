// out[t, h] = sum_p softmax_p(scale * q[t, h] . k[p]) v[p] over positions p = 0..position[t] of the row's own sequence,
// or over the last `window` of them.
// A workgroup computes the query heads of one key/value head for a few rows. Blocks of 64 positions are read once, with
// a running maximum and sum (online softmax). Neighbouring rows of one sequence share the decoded block; a single row
// reads it in place. Both sum in the same order, so that a row has the same bits in every batch. Positions outside a
// row's range are never read for it. A row whose sequence or block lies outside the tables or the cache gives NaN.
#pragma once
#include "kernels/cache.hpp"
#include "kernels/gemm_f32.hpp"
#include "simd/exp.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t HEADS_AT_ONCE = 4;  // queries that share the loads of a key or value

static inline uint32_t padded_dim(uint32_t head_dim) { return ceil_div(head_dim, LANES) * LANES; }

struct Softmax {
  float most, sum;
};

// scores[skip..seen) become e^(score - maximum), the rest of the block 0. Returns the factor for the earlier sums.
static inline float softmax_block(float* scores, uint32_t skip, uint32_t seen, Softmax& state) {
  for (uint32_t p = 0; p < skip; ++p) scores[p] = -INFINITY;
  for (uint32_t p = seen; p < KV_BLOCK; ++p) scores[p] = -INFINITY;
  Vec most = splat(state.most), sums = splat(0);
  for (uint32_t p = 0; p < KV_BLOCK; p += LANES) most = max(load(scores + p), most);
  const float now = largest(most);
  for (uint32_t p = 0; p < KV_BLOCK; p += LANES) {
    const Vec e = exp(load(scores + p) - splat(now));
    store(scores + p, e);
    sums = sums + e;
  }
  if (now == -INFINITY) sums = splat(NAN);
  float shift[LANES];
  store(shift, exp(splat(state.most - now)));
  const float factor = state.most == -INFINITY ? 0.0f : shift[0];
  for (uint32_t p = 0; p < skip; ++p) scores[p] = 0;
  for (uint32_t p = seen; p < KV_BLOCK; ++p) scores[p] = 0;
  state.most = now;
  state.sum = state.sum * factor + sum(sums);
  return factor;
}

struct Attention {
  const Launch& launch;
  AttentionParams p;
  Cache k_cache, v_cache;
  uint32_t group, padded, window;
  size_t sequences;

  explicit Attention(const Launch& l)
      : launch(l), p(params_of<AttentionParams>(l)),
        k_cache(l.views[1], l.constants.kv, p), v_cache(l.views[2], l.constants.kv, p), group(p.n_heads / p.n_kv_heads),
        padded(padded_dim(p.head_dim)), window(l.kernel == WINDOW_ATTENTION ? l.params[7] : UINT32_MAX), sequences(l.views[4].size / 4 / p.max_blocks) {}

  const Step& step(uint32_t t) const { return view<Step>(launch, 3)[t]; }
  const float* q(uint32_t t, uint32_t head) const {
    return view<float>(launch, 0) + (size_t(t) * p.n_heads + head) * p.head_dim;
  }
  float* out(uint32_t t, uint32_t head) const {
    return view<float>(launch, 5) + (size_t(t) * p.n_heads + head) * p.head_dim;
  }
  // The first position in row t's range, and the one after the last.
  uint32_t begin(uint32_t t) const { return end(t) - smaller(end(t), window); }
  uint32_t end(uint32_t t) const { return uint32_t(step(t).position) + 1; }
  // Returns the cache block of `column` of a sequence; false if there is none.
  bool block(int32_t sequence, uint32_t column, size_t& at) const {
    const int32_t entry = view<int32_t>(launch, 4)[size_t(sequence) * p.max_blocks + column];
    at = size_t(entry);
    return entry >= 0 && at < k_cache.blocks && at < v_cache.blocks;
  }
  bool addressable(const Step& s) const {
    return s.sequence >= 0 && size_t(s.sequence) < sequences && uint32_t(s.position) / KV_BLOCK < p.max_blocks;
  }
  void fill(uint32_t t, uint32_t h0, uint32_t h1, float value) const {
    for (float *at = out(t, h0), *end = at + size_t(h1 - h0) * p.head_dim; at < end; ++at) *at = value;
  }
};

// scores[h * 64 + j] = q[h] . k[j] * scales[j] for H queries and the first `seen` keys of a block, `stride` bytes apart.
template <KvCacheType KV, uint32_t H>
static inline void score_rows(const float* q, uint32_t dim, const uint8_t* rows, uint32_t stride, uint32_t seen,
                              const float* scales, float* scores) {
  for (uint32_t j = 0; j < seen; ++j, rows += stride) {
    Vec sums[H];
    float tail[H] = {};
    for (auto& s : sums) s = splat(0);
    uint32_t i = 0;
    for (; i + LANES <= dim; i += LANES) {
      const Vec k = load_kv<KV>(rows, i);
      for (uint32_t h = 0; h < H; ++h) sums[h] = fma(k, load(q + h * dim + i), sums[h]);
    }
    for (; i < dim; ++i)
      for (uint32_t h = 0; h < H; ++h) tail[h] += load_kv_one<KV>(rows, i) * q[h * dim + i];
    float totals[H];
    sum_each<H>(sums, totals);
    for (uint32_t h = 0; h < H; ++h) scores[h * KV_BLOCK + j] = (totals[h] + tail[h]) * scales[j];
  }
}

// scales[j] = scale * the scale of key j.
static inline void key_scales(const Attention& a, const uint8_t* rows, uint32_t count, float* scales) {
  for (uint32_t j = 0; j < count; ++j) scales[j] = a.p.scale * a.k_cache.scale(rows + size_t(j) * a.p.row_bytes);
}

// acc[h * padded + i] = acc * factor[h] + sum_j weights[h * 64 + j] v[j, i]
template <KvCacheType KV, uint32_t H>
static inline void mix_rows(const Attention& a, const float* weights, const float* factor, const uint8_t* rows, uint32_t seen,
                            float* acc) {
  const uint32_t dim = a.p.head_dim, stride = a.p.row_bytes;
  uint32_t i = 0;
  for (; i + 2 * LANES <= dim; i += 2 * LANES) {
    Vec sums[H][2];
    for (uint32_t h = 0; h < H; ++h)
      for (uint32_t v = 0; v < 2; ++v) sums[h][v] = load(acc + h * a.padded + i + v * LANES) * splat(factor[h]);
    for (uint32_t j = 0; j < seen; ++j) {
      const Vec v0 = load_kv<KV>(rows + size_t(j) * stride, i), v1 = load_kv<KV>(rows + size_t(j) * stride, i + LANES);
      for (uint32_t h = 0; h < H; ++h) {
        const Vec w = splat(weights[h * KV_BLOCK + j]);
        sums[h][0] = fma(w, v0, sums[h][0]);
        sums[h][1] = fma(w, v1, sums[h][1]);
      }
    }
    for (uint32_t h = 0; h < H; ++h)
      for (uint32_t v = 0; v < 2; ++v) store(acc + h * a.padded + i + v * LANES, sums[h][v]);
  }
  for (; i < dim; ++i)
    for (uint32_t h = 0; h < H; ++h) {
      float total = acc[h * a.padded + i] * factor[h];
      for (uint32_t j = 0; j < seen; ++j)
        total = fma_one(weights[h * KV_BLOCK + j], load_kv_one<KV>(rows + size_t(j) * stride, i), total);
      acc[h * a.padded + i] = total;
    }
}

// Computes one row, heads h0..h0 + H of one key/value head, directly from the cache.
template <KvCacheType KV, uint32_t H>
static inline void one_row(const Attention& a, uint32_t t, uint32_t h0, uint32_t kv_head, float* scratch) {
  float *scores = scratch, *acc = scratch + HEADS_AT_ONCE * KV_BLOCK;
  Softmax state[H];
  for (auto& s : state) s = {-INFINITY, 0};
  for (uint32_t i = 0; i < H * a.padded; ++i) acc[i] = 0;
  const Step& step = a.step(t);
  const uint32_t begin = a.begin(t), length = a.end(t);
  for (uint32_t first = begin / KV_BLOCK * KV_BLOCK; first < length; first += KV_BLOCK) {
    size_t block;
    if (!a.block(step.sequence, first / KV_BLOCK, block)) return a.fill(t, h0, h0 + H, NAN);
    const uint32_t skip = begin > first ? begin - first : 0, seen = smaller(KV_BLOCK, length - first);
    const uint8_t* values = a.v_cache.rows(block, kv_head) + size_t(skip) * a.p.row_bytes;
    const uint8_t* keys = a.k_cache.rows(block, kv_head) + size_t(skip) * a.p.row_bytes;
    float scales[KV_BLOCK], factor[H];
    key_scales(a, keys, seen - skip, scales);
    score_rows<KV, H>(a.q(t, h0), a.p.head_dim, keys, a.p.row_bytes, seen - skip, scales, scores + skip);
    for (uint32_t h = 0; h < H; ++h) factor[h] = softmax_block(scores + h * KV_BLOCK, skip, seen, state[h]);
    if constexpr (KV == KV_INT8)
      for (uint32_t h = 0; h < H; ++h)
        for (uint32_t j = 0; j < seen - skip; ++j)
          scores[h * KV_BLOCK + skip + j] *= a.v_cache.scale(values + size_t(j) * a.p.row_bytes);
    mix_rows<KV, H>(a, scores + skip, factor, values, seen - skip, acc);
  }
  for (uint32_t h = 0; h < H; ++h) {
    float* out = a.out(t, h0 + h);
    for (uint32_t i = 0; i < a.p.head_dim; ++i) out[i] = acc[h * a.padded + i] / state[h].sum;
  }
}

// Computes as many whole groups of H heads as there are. Returns the first remaining head.
template <KvCacheType KV, uint32_t H>
static inline uint32_t one_row_heads(const Attention& a, uint32_t t, uint32_t h0, uint32_t h1, uint32_t kv_head,
                                     float* scratch) {
  for (; h0 + H <= h1; h0 += H) one_row<KV, H>(a, t, h0, kv_head, scratch);
  return h0;
}

// Decodes the first `count` rows of a block to f32[64, padded], without the scales of int8 rows; the rest and the
// padding are 0.
template <KvCacheType KV>
static inline void decode_block(const Attention& a, const uint8_t* rows, uint32_t count, float* out) {
  const uint32_t dim = a.p.head_dim;
  for (uint32_t j = 0; j < KV_BLOCK; ++j, rows += a.p.row_bytes, out += a.padded) {
    if (j >= count) {
      for (uint32_t i = 0; i < a.padded; ++i) out[i] = 0;
      continue;
    }
    uint32_t i = 0;
    for (; i + LANES <= dim; i += LANES) store(out + i, load_kv<KV>(rows, i));
    for (; i < dim; ++i) out[i] = load_kv_one<KV>(rows, i);
    for (; i < a.padded; ++i) out[i] = 0;
  }
}

// Computes scores of as many whole groups of H queries as there are with `count` decoded keys. Returns the first
// remaining query.
template <uint32_t H>
static inline uint32_t score_queries(const Attention& a, const float* q, uint32_t m, uint32_t queries, const float* keys,
                                     uint32_t count, const float* scales, float* scores) {
  const auto* rows = reinterpret_cast<const uint8_t*>(keys);
  for (; m + H <= queries; m += H)
    score_rows<KV_F32, H>(q + size_t(m) * a.p.head_dim, a.p.head_dim, rows, 4 * a.padded, count, scales,
                          scores + size_t(m) * KV_BLOCK);
  return m;
}

// Computes rows t0..t1 of one sequence, heads h0..h1 of one key/value head; query m = (t - t0) * heads + h - h0.
template <KvCacheType KV>
static inline void shared_rows(const Attention& a, uint32_t t0, uint32_t t1, uint32_t h0, uint32_t h1, uint32_t kv_head,
                               float* scratch) {
  const uint32_t heads = h1 - h0, queries = (t1 - t0) * heads, dim = a.p.head_dim, padded = a.padded;
  float* keys = scratch;
  float* values = keys + KV_BLOCK * padded;
  float* q = values + KV_BLOCK * padded;
  float* scores = q + size_t(queries) * dim;
  float* acc = scores + size_t(queries) * KV_BLOCK;
  auto* state = reinterpret_cast<Softmax*>(acc + size_t(queries) * padded);
  uint32_t start = UINT32_MAX, length = 0;
  for (uint32_t m = 0; m < queries; ++m) {
    const uint32_t t = t0 + m / heads, end = a.end(t);
    start = smaller(start, a.begin(t) / KV_BLOCK * KV_BLOCK);
    length = end > length ? end : length;
    const float* from = a.q(t, h0 + m % heads);
    for (uint32_t i = 0; i < dim; ++i) q[size_t(m) * dim + i] = from[i];
    for (uint32_t i = 0; i < padded; ++i) acc[size_t(m) * padded + i] = 0;
    state[m] = {-INFINITY, 0};
  }
  for (uint32_t first = start; first < length; first += KV_BLOCK) {
    size_t block;
    if (!a.block(a.step(t0).sequence, first / KV_BLOCK, block)) {
      for (uint32_t m = 0; m < queries; ++m)
        if (const uint32_t t = t0 + m / heads; a.end(t) > first && a.begin(t) < first + KV_BLOCK) state[m].sum = NAN;
      continue;
    }
    const uint32_t count = smaller(KV_BLOCK, length - first);
    const uint8_t *cached_keys = a.k_cache.rows(block, kv_head), *cached_values = a.v_cache.rows(block, kv_head);
    decode_block<KV>(a, cached_keys, count, keys);
    decode_block<KV>(a, cached_values, count, values);
    float scales[KV_BLOCK];
    key_scales(a, cached_keys, count, scales);
    uint32_t scored = score_queries<HEADS_AT_ONCE>(a, q, 0, queries, keys, count, scales, scores);
    scored = score_queries<2>(a, q, scored, queries, keys, count, scales, scores);
    score_queries<1>(a, q, scored, queries, keys, count, scales, scores);
    bool whole = true;
    for (uint32_t m = 0; m < queries; ++m) {
      const uint32_t begin = a.begin(t0 + m / heads), end = a.end(t0 + m / heads);
      whole = whole && begin <= first && end >= first + KV_BLOCK;
      if (end <= first || begin >= first + KV_BLOCK) continue;
      const uint32_t skip = begin > first ? begin - first : 0, seen = smaller(KV_BLOCK, end - first);
      float *weights = scores + size_t(m) * KV_BLOCK, *sums = acc + size_t(m) * padded;
      const float factor = softmax_block(weights, skip, seen, state[m]);
      if constexpr (KV == KV_INT8)
        for (uint32_t j = skip; j < seen; ++j) weights[j] *= a.v_cache.scale(cached_values + size_t(j) * a.p.row_bytes);
      for (uint32_t i = 0; i < padded; i += LANES) store(sums + i, load(sums + i) * splat(factor));
    }
    if (whole) {
      gemm(queries, scores, KV_BLOCK, values, padded, KV_BLOCK, acc, padded, padded, true);
    } else {
      for (uint32_t m = 0; m < queries; ++m) {
        const uint32_t begin = a.begin(t0 + m / heads), end = a.end(t0 + m / heads);
        if (end <= first || begin >= first + KV_BLOCK) continue;
        const uint32_t skip = begin > first ? begin - first : 0, seen = smaller(KV_BLOCK, end - first);
        gemm(1, scores + size_t(m) * KV_BLOCK + skip, KV_BLOCK, values + size_t(skip) * padded, padded, seen - skip,
             acc + size_t(m) * padded, padded, padded, true);
      }
    }
  }
  for (uint32_t m = 0; m < queries; ++m) {
    float* out = a.out(t0 + m / heads, h0 + m % heads);
    for (uint32_t i = 0; i < dim; ++i) out[i] = acc[size_t(m) * padded + i] / state[m].sum;
  }
}

template <KvCacheType KV>
static inline void attend(const Attention& a, uint32_t t0, uint32_t t1, uint32_t h0, uint32_t h1, float* scratch) {
  while (h0 < h1) {
    const uint32_t kv_head = h0 / a.group, last = smaller(h1, (kv_head + 1) * a.group);
    for (uint32_t t = t0; t < t1;) {
      const Step& step = a.step(t);
      uint32_t next = t + 1;
      if (step.position < 0) {
        a.fill(t, h0, last, 0.0f);
      } else if (!a.addressable(step)) {
        a.fill(t, h0, last, NAN);
      } else {
        while (next < t1 && a.step(next).sequence == step.sequence && a.step(next).position >= 0 &&
               a.addressable(a.step(next)))
          ++next;
        if (next - t == 1) {
          uint32_t h = one_row_heads<KV, HEADS_AT_ONCE>(a, t, h0, last, kv_head, scratch);
          h = one_row_heads<KV, 2>(a, t, h, last, kv_head, scratch);
          one_row_heads<KV, 1>(a, t, h, last, kv_head, scratch);
        } else {
          shared_rows<KV>(a, t, next, h0, last, kv_head, scratch);
        }
      }
      t = next;
    }
    h0 = last;
  }
}

static void attention(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const Attention a(launch);
  auto* floats = reinterpret_cast<float*>(scratch);
  const Constants& c = launch.constants;
  for (uint32_t g = begin; g < end; ++g) {
    const uint32_t h0 = g % launch.grid[0] * c.tile_n, h1 = h0 + smaller(c.tile_n, a.p.n_heads - h0);
    const uint32_t y = launch.grid[1] - 1 - g / launch.grid[0];  // the end of a prompt first, since it has the most positions
    const uint32_t t0 = y * c.tile_t, t1 = t0 + smaller(c.tile_t, a.p.rows - t0);
    if (c.kv == KV_F32) attend<KV_F32>(a, t0, t1, h0, h1, floats);
    if (c.kv == KV_F16) attend<KV_F16>(a, t0, t1, h0, h1, floats);
    if (c.kv == KV_INT8) attend<KV_INT8>(a, t0, t1, h0, h1, floats);
  }
}

}  // namespace bitnet::BITNET_PATH
