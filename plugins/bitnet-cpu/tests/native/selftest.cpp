// Runs every kernel on every code path that this CPU has, on heap buffers of exactly the catalogue's sizes, and compares
// with the portable path: integers and copies exactly, f32 sums within a tolerance. Built with a sanitizer it also shows
// that nothing leaves its buffer. Prints one line a path; exit status 1 on a difference.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>

#include "check.hpp"
#include "paths.hpp"
#include "pool.hpp"

#ifdef BITNET_EMULATED_TILES
namespace bitnet {
extern const Path emulated_tiles_path;
}
#endif

namespace {

using namespace bitnet;

std::mt19937 generator(20260);
int failures = 0;

using Data = std::vector<uint8_t>;

Data floats(size_t n, float scale = 1.0f) {
  std::normal_distribution<float> normal(0, scale);
  Data data(n * 4);
  for (size_t i = 0; i < n; ++i) {
    const float f = normal(generator);
    std::memcpy(&data[4 * i], &f, 4);
  }
  return data;
}

Data integers(const std::vector<int32_t>& values) {
  Data data(values.size() * 4);
  if (!values.empty()) std::memcpy(data.data(), values.data(), data.size());
  return data;
}

// Bytes of `low`..`high`.
Data bytes(size_t n, int low, int high) {
  std::uniform_int_distribution<int> uniform(low, high);
  Data data(n);
  for (auto& b : data) b = uint8_t(uniform(generator));
  return data;
}

template <class... P>
std::vector<uint32_t> words(P... p) {
  std::vector<uint32_t> packed;
  const auto add = [&](auto v) {
    uint32_t word;
    static_assert(sizeof v == 4, "parameters are 32-bit");
    std::memcpy(&word, &v, 4);
    packed.push_back(word);
  };
  (add(p), ...);
  return packed;
}

struct Case {
  const char* name;
  KernelId kernel;
  Constants constants;
  std::vector<Data> views;
  std::vector<uint32_t> params;
  uint32_t grid_x, grid_y;
  double tolerance;  // relative to the largest magnitude of an f32 view; 0 = all bytes equal
};

std::vector<Data> result(const Case& c, const Path& path, Pool& pool) {
  std::vector<Data> views = c.views;
  Launch launch{};
  launch.kernel = c.kernel;
  launch.constants = c.constants;
  for (size_t i = 0; i < views.size(); ++i) launch.views[i] = {views[i].data(), views[i].size()};
  for (size_t i = 0; i < c.params.size(); ++i) launch.params[i] = c.params[i];
  launch.grid[0] = c.grid_x, launch.grid[1] = c.grid_y, launch.grid[2] = 1;
  prepare(launch, views.size(), path);
  pool.reserve(launch.scratch);
  pool.run(&launch, 1);
  return views;
}

bool close(const Data& a, const Data& b, double tolerance) {
  if (a == b) return true;
  if (tolerance == 0 || a.size() % 4 != 0) return false;
  double most = 0, apart = 0;
  for (size_t i = 0; i < a.size(); i += 4) {
    float x, y;
    std::memcpy(&x, &a[i], 4);
    std::memcpy(&y, &b[i], 4);
    if (std::isnan(x) != std::isnan(y)) return false;
    if (std::isnan(x)) continue;
    most = std::fmax(most, std::fabs(double(x)));
    apart = std::fmax(apart, std::fabs(double(x) - double(y)));
  }
  return apart <= tolerance * most;
}

// int8 codes may differ by one where a value lies on a rounding boundary.
bool codes_close(const Data& a, const Data& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (std::abs(int(int8_t(a[i])) - int(int8_t(b[i]))) > 1) return false;
  return true;
}

// The sum of every `count` bytes.
Data block_sums(const Data& q, uint32_t count) {
  std::vector<int32_t> sums;
  for (size_t at = 0; at < q.size(); at += count) {
    int32_t sum = 0;
    for (uint32_t i = 0; i < count; ++i) sum += int8_t(q[at + i]);
    sums.push_back(sum);
  }
  return integers(sums);
}

// A mixture of experts: fewer pairs than experts and more, and ids outside the experts.
void add_expert_kernels(std::vector<Case>& all) {
  for (uint32_t experts : {1u, 5u, 64u})
    for (uint32_t rows : {1u, 6u}) {
      const uint32_t used = experts == 1 ? 1 : 2, outs = 9, pairs = rows * used;
      all.push_back({"route_experts", ROUTE_EXPERTS, Constants{}, {floats(rows * experts), Data(pairs * 4), Data(pairs * 4)},
                     words(rows, experts, used), rows, 1, 1e-5});
      std::vector<int32_t> ids;
      for (uint32_t i = 0; i < pairs; ++i) ids.push_back(i % 7 == 3 ? int32_t(experts) : int32_t(i * i % experts));
      for (uint32_t block : {64u, 128u, 256u})
        for (uint32_t ablock : {0u, 32u})
          for (uint32_t inputs : {1u, used}) {
            const uint32_t width = 384, scales = scales_of(width, ablock);
            Constants c{};
            c.block = block, c.ablock = ablock, c.tile_n = 4;
            const Data q = bytes(size_t(rows) * inputs * width, 0, 255);
            all.push_back({"matmul_experts", MATMUL_EXPERTS, c,
                           {bytes(size_t(experts) * outs * width / 4, 0, 255), floats(size_t(experts) * outs * ceil_div(width, block)),
                            q, floats(size_t(rows) * inputs * scales), block_sums(q, ablock != 0 ? 32 : width), integers(ids),
                            floats(pairs * 11)},
                           words(rows, outs, width, 11u, 2u, experts, used, inputs), 3, std::min(pairs, experts), 1e-5});
          }
    }
  for (uint32_t width : {1u, 33u, 130u}) {
    Constants c{};
    c.ablock = 32;
    all.push_back({"clamp_glu_quantize", CLAMP_GLU_QUANTIZE, c,
                   {floats(4 * width, 5.0f), Data(2 * 256), Data(2 * 8 * 4), Data(2 * 8 * 4)}, words(2u, width, 256u, 3.0f), 2, 1, 1e-5});
    all.push_back({"sum_experts", SUM_EXPERTS, Constants{}, {floats(6 * width), floats(6), floats(2 * width)}, words(2u, width, 3u), 2, 1,
                   1e-5});
  }
}

// Rotations, gates, and delta nets with rows that begin a text, go on with one, and are nobody's.
void add_delta_kernels(std::vector<Case>& all) {
  for (uint32_t inverse : {0u, 1u})
    for (uint32_t block : {2u, 8u, 256u}) {
      Constants c{};
      c.inverse = inverse;
      all.push_back({"hadamard_rotate", HADAMARD_ROTATE, c, {floats(2 * 3 * block), floats(3 * block), floats(2 * 3 * block)},
                     words(2u, 3 * block, block), 3, 2, 2e-6});
    }
  const Data step = integers({0, 0, 0, 1, 0, 1, 0, 1, 0, -1, -1, 0, 0, 9, 0, 2, 0, 4, 0, 3});  // 3 has no state
  for (uint32_t width : {1u, 13u, 130u}) {
    for (uint32_t act : {0u, 1u}) {
      Constants c{};
      c.act = act;
      all.push_back({"glu", GLU, c, {floats(6 * width), floats(3 * width)}, words(3u, width), 3, 1, 1e-5});
      c.act = act + 1, c.norm = act;
      all.push_back({"gated_rms_norm", GATED_RMS_NORM, c,
                     {floats(12 * width), floats(12 * width), floats(width), floats(12 * width)},
                     words(3u, 4u, width, 2u, 1e-6f), 4, 3, 1e-5});
    }
    for (uint32_t taps : {2u, 4u}) {
      Constants c{};
      c.tile_n = 64;
      all.push_back({"causal_conv1d", CAUSAL_CONV1D, c,
                     {floats(5 * width), step, floats(width * taps), floats(3 * (taps - 1) * width), floats(5 * width)},
                     words(5u, width, taps), ceil_div(width, 64), 1, 1e-5});
    }
    Constants c{};
    c.tile_n = 50;
    all.push_back({"gated_delta_rule", GATED_DELTA_RULE, c,
                   {floats(5 * (4 * 7 + 4 * width)), floats(5 * 8), floats(4, 0.1f), floats(4), step,
                    floats(3 * 4 * 7 * width, 0.3f), floats(5 * 4 * width)},
                   words(5u, 4u, 2u, 7u, width, 1e-6f), 4, ceil_div(width, 50), 2e-5});
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto ternary = [&](uint32_t rows, uint32_t outs, uint32_t width, uint32_t tile_n, uint32_t add) {
    Constants c{};
    c.add = add, c.tile_n = tile_n, c.tile_t = rows;
    const uint32_t stride = outs + 3;
    all.push_back({"matmul_ternary", MATMUL_TERNARY, c,
                   {bytes(size_t(outs) * width / 4, 0, 255), floats(outs), bytes(size_t(rows) * width, 0, 255), floats(rows),
                    integers(std::vector<int32_t>(rows, 77)), floats(size_t(rows) * stride)},
                   words(rows, outs, width, stride, 3u), ceil_div(outs, tile_n), 1, 0});
  };
  for (uint32_t rows : {1u, 2u, 3u, 5u, 8u, 9u, 17u, 29u})
    for (uint32_t width : {128u, 384u, 1408u}) ternary(rows, 37, width, rows > 8 ? 32 : 8, rows % 2);
  for (uint32_t rows : {32u, 43u, 50u, 99u}) ternary(rows, 70, 384, 32, 1);
  ternary(1, 128, 6912, 32, 1);

  for (uint32_t block : {64u, 128u, 256u})
    for (uint32_t ablock : {0u, 32u, 128u})
      for (uint32_t rows : {1u, 3u, 7u, 9u, 29u}) {
        constexpr uint32_t OUTS = 37, WIDTH = 1408;  // 5 1/2 blocks of 256
        Constants c{};
        c.block = block, c.ablock = ablock, c.add = rows % 3 == 0, c.tile_n = rows > 8 ? 32 : 8, c.tile_t = rows > 3 ? rows : 2;
        const uint32_t scales = scales_of(WIDTH, ablock);
        const Data q = bytes(rows * WIDTH, 0, 255);
        all.push_back({"matmul_ternary_block", MATMUL_TERNARY_BLOCK, c,
                       {bytes(OUTS * WIDTH / 4, 0, 255), floats(OUTS * ceil_div(WIDTH, block)), q, floats(rows * scales),
                        block_sums(q, WIDTH / scales), floats(rows * (OUTS + 3))},
                       words(rows, OUTS, WIDTH, OUTS + 3, 3u), ceil_div(OUTS, c.tile_n), ceil_div(rows, c.tile_t), 2e-6});
      }
  for (uint32_t block : {64u, 128u}) {
    Constants c{};
    c.block = block, c.tile_n = 256;
    all.push_back({"embed_rows_ternary", EMBED_ROWS_TERNARY, c,
                   {bytes(9 * 384 / 4, 0, 255), floats(9 * 384 / block), integers({8, 0, 0, 0, 20, 0, 0, 0, -1, 0, 0, 0}), floats(3 * 300)},
                   words(3u, 300u, 384u, 0u, 9u), 2, 3, 0});
  }

  for (uint32_t width : {1u, 7u, 100u, 640u, 2561u})
    for (uint32_t norm : {0u, 1u}) {
      Constants c{};
      c.norm = norm;
      const uint32_t stride = ceil_div(width, 128) * 128;
      c.ablock = width % 7 == 0 ? 32 : width == 640 ? 128 : 0;
      const uint32_t scales = 3 * scales_of(stride, c.ablock);
      const std::vector<Data> outputs = {bytes(3 * stride, 9, 9), floats(scales), floats(scales)};
      all.push_back({"rms_norm_quantize", RMS_NORM_QUANTIZE, c, {floats(3 * width), floats(width), outputs[0], outputs[1], outputs[2]},
                     words(3u, width, stride, 1e-5f), 3, 1, 1e-5});
      for (uint32_t act : {0u, 1u}) {
        c.act = act;
        all.push_back({"glu_norm_quantize", GLU_NORM_QUANTIZE, c,
                       {floats(6 * width), floats(width), outputs[0], outputs[1], outputs[2]}, words(3u, width, stride, 1e-5f), 3,
                       1, 1e-5});
      }
    }
  all.push_back({"rms_norm", RMS_NORM, {}, {floats(4 * 99), integers({3, 0, 99}), floats(99), floats(3 * 99)},
                 words(3u, 99u, 1e-5f), 3, 1, 1e-5});

  add_delta_kernels(all);
  add_expert_kernels(all);

  const auto dense_bytes = [](uint32_t dtype, uint32_t width) {
    return dtype == F32 ? width * 4 : dtype == Q8_0 ? width / 32 * 34 : dtype == Q6_K ? width / 256 * 210 : width * 2;
  };
  for (uint32_t dtype = F32; dtype <= Q6_K; ++dtype)
    for (uint32_t width : {dtype < Q8_0 ? 131u : 512u, 768u}) {
      Constants c{};
      c.dtype = dtype, c.tile_n = 256;
      Data table = dtype == F32 ? floats(9 * width) : bytes(9 * dense_bytes(dtype, width), 0, 60);  // 60: no NaN exponents
      all.push_back({"embed_rows", EMBED_ROWS, c, {table, integers({8, 0, 0, 0, 20, 0, 0, 0, -1, 0, 0, 0}), floats(3 * width)},
                     words(3u, width, 0u, 9u), ceil_div(width, 256), 3, 0});
      for (uint32_t rows : {1u, 6u}) {
        c.tile_n = 4, c.tile_t = rows;
        all.push_back({"matmul_dense", MATMUL_DENSE, c, {floats(rows * width), table, floats(rows * 11)},
                       words(rows, 9u, width, 11u, 2u), 3, 1, 2e-5});
      }
    }

  for (uint32_t kv : {0u, 1u, 2u})
    for (uint32_t dim : {8u, 20u, 100u, 128u}) {
      Constants c{};
      c.kv = kv;
      const uint32_t row = kv == KV_F32 ? 4 * dim : kv == KV_F16 ? 2 * dim : 4 + dim, heads = 6, kv_heads = 2, blocks = 5;
      const size_t cache = size_t(blocks) * kv_heads * KV_BLOCK * row;
      // token, position, slot, sequence: a padding row, a slot outside the cache, a sequence outside the tables
      const Data step = integers({0, 3, 3, 0, 0, 70, 134, 1, 0, -1, -1, 0, 0, 2, 320, 0, 0, 4, 1000000, 9});
      for (uint32_t interleaved : {0u, 1u}) {
        c.interleaved = interleaved, c.tile_n = 1, c.qknorm = kv == KV_F32 ? interleaved : 0;
        all.push_back({"rope_store_kv", ROPE_STORE_KV, c,
                       {floats(5 * (heads + 2 * kv_heads) * dim), step, floats(80 * dim), floats(dim), floats(dim),
                        floats(5 * heads * dim), Data(cache), Data(cache)},
                       words(5u, heads, kv_heads, dim, row, 1e-6f), heads + 2 * kv_heads, 5, kv == KV_F32 ? 1e-6 : 0});
      }
      Data k = kv == KV_F32 ? floats(cache / 4) : bytes(cache, 0, 58), v = k;
      if (kv == KV_INT8)
        for (size_t at = 0; at < cache; at += row) {
          const float scale = 0.01f + 1e-6f * float(at % 1000);
          std::memcpy(&k[at], &scale, 4);
          std::memcpy(&v[at], &scale, 4);
        }
      for (uint32_t tile_t : {1u, 4u}) {
        c.tile_n = 1 + 2 * (tile_t / 4), c.tile_t = tile_t;  // one head, or all three of a key/value head
        const Data rows = integers({0, 100, 0, 0, 0, 101, 0, 0, 0, 102, 0, 0, 0, 127, 0, 1, 0, -1, 0, 0, 0, 5, 0, 2, 0, 6, 0, 2,
                                    0, 300, 0, 0, 0, 3, 0, 9});
        all.push_back({"attention", ATTENTION, c,
                       {floats(9 * heads * dim), k, v, rows, integers({3, 1, -1, 0, 2, -1, 4, -1, -1}), floats(9 * heads * dim)},
                       words(9u, heads, kv_heads, dim, row, 3u, 1.0f / std::sqrt(float(dim))), heads / c.tile_n, ceil_div(9, tile_t),
                       1e-4});
        for (uint32_t window : {1u, 40u, 65u})
          all.push_back({"window_attention", WINDOW_ATTENTION, c,
                         {floats(9 * heads * dim), k, v, rows, integers({3, 1, -1, 0, 2, -1, 4, -1, -1}), floats(9 * heads * dim)},
                         words(9u, heads, kv_heads, dim, row, 3u, 1.0f / std::sqrt(float(dim)), window), heads / c.tile_n,
                         ceil_div(9, tile_t), 1e-4});
      }
    }

  for (uint32_t vocab : {5u, 33u, 1000u}) {
    Data logits = floats(3 * vocab);
    const float nan = NAN;
    std::memcpy(&logits[4 * (vocab + 2)], &nan, 4);
    for (uint32_t mask : {0u, 1u}) {
      Constants c{};
      c.mask = mask;
      const Data allowed = bytes(3 * ceil_div(vocab, 32) * 4, 1, 255);
      all.push_back({"argmax_advance", ARGMAX_ADVANCE, c,
                     {logits, allowed, integers({1, 0, 7}), integers({4, 5, -1, 3}), integers({9, 63, 5, 0, 8, 64, 6, 1}),
                      integers({0, 0, 0, 2, 0, 0})},
                     words(3u, vocab, vocab, 2u, 2u), 3, 1, 0});
      for (uint32_t k : {1u, 5u})
        all.push_back({"top_k", TOP_K, c, {logits, allowed, Data(3 * k * 4), Data(3 * k * 4), Data(3 * 2 * 4)},
                       words(3u, vocab, vocab, k), 3, 1, 1e-5});
    }
  }
  for (uint32_t outs : {1u, 300u})
    for (uint32_t width : {96u, 256u}) {
      Constants c{};
      c.tile_n = 256;
      const Data x = floats(2 * width), table = bytes(size_t(outs) * width * 2, 0, 60), error = floats(outs);
      all.push_back({"pack_head", PACK_HEAD, c, {table, Data(outs * width), Data(outs * 4), Data(outs * 4)}, words(outs, width),
                     ceil_div(outs, 256), 1, 1e-5});
      c.tile_t = 1;
      const uint32_t groups = ceil_div(outs, HEAD_GROUP);
      all.push_back({"approx_logits", APPROX_LOGITS, c,
                     {x, bytes(size_t(outs) * width, 0, 255), floats(outs), error, floats(2 * outs), floats(2 * groups)},
                     words(2u, outs, width, outs), ceil_div(outs, 256), 2, 1e-5});
      all.push_back({"refine_logits", REFINE_LOGITS, c, {x, table, error, floats(2 * groups), floats(2 * outs)},
                     words(2u, outs, width, outs, 1u), ceil_div(outs, 256), 2, 1e-5});
    }
  return all;
}

void compare(const std::vector<Case>& all, const Path& path, Pool& pool) {
  int wrong = 0;
  for (const Case& c : all) {
    const auto expected = result(c, portable_path, pool), got = result(c, path, pool);
    for (size_t i = 0; i < got.size(); ++i) {
      const bool clamped = c.kernel == CLAMP_GLU_QUANTIZE;
      const bool quantized = clamped || c.kernel == RMS_NORM_QUANTIZE || c.kernel == GLU_NORM_QUANTIZE;
      const size_t codes = clamped ? 1 : 2;
      const bool sums = quantized && i == codes + 2;  // follows the codes
      if (sums || ((quantized && i == codes) || (c.kernel == PACK_HEAD && i == 1) ? codes_close(expected[i], got[i]) : close(expected[i], got[i], c.tolerance))) continue;
      std::printf("%s: %s differs in view %zu (rows %u, %u, %u)\n", path.name, c.name, i, c.params[0], c.params[1], c.params[2]);
      ++wrong;
    }
  }
  std::printf("%-13s %zu cases, %d wrong\n", path.name, all.size(), wrong);
  failures += wrong;
}

// Launches that must be refused.
void refusals() {
  const auto refused = [](const char* what, const std::function<void(Launch&)>& spoil) {
    Data w(8 * 32), q(2 * 128), y(2 * 8 * 4), scales(32);
    Launch launch{};
    launch.kernel = MATMUL_TERNARY;
    launch.constants.tile_n = 4, launch.constants.tile_t = 2;
    const Data* views[] = {&w, &scales, &q, &scales, &scales, &y};
    for (size_t i = 0; i < 6; ++i) launch.views[i] = {const_cast<uint8_t*>(views[i]->data()), views[i]->size()};
    const auto params = words(2u, 8u, 128u, 8u, 0u);
    for (size_t i = 0; i < params.size(); ++i) launch.params[i] = params[i];
    launch.grid[0] = 2, launch.grid[1] = launch.grid[2] = 1;
    prepare(launch, 6, portable_path);  // sound so far
    spoil(launch);
    try {
      prepare(launch, 6, portable_path);
    } catch (const LaunchFault&) {
      return;
    }
    std::printf("not refused: %s\n", what);
    ++failures;
  };
  refused("a view one byte short", [](Launch& l) { l.views[0].size -= 1; });
  refused("an unaligned view", [](Launch& l) { l.views[5].data += 1, l.views[5].size -= 1, l.params[1] = 4, l.grid[0] = 1; });
  refused("more rows than fit", [](Launch& l) { l.params[0] = 3, l.grid[1] = 2; });
  refused("sizes that overflow", [](Launch& l) { l.params[0] = l.params[1] = l.params[3] = 0xffffffff; });
  refused("a width of 100", [](Launch& l) { l.params[2] = 100; });
  refused("outs outside y_stride", [](Launch& l) { l.params[4] = 1; });
  refused("another grid", [](Launch& l) { l.grid[0] = 1; });
  refused("no rows", [](Launch& l) { l.params[0] = 0; });
}

}  // namespace

int main() {
  const auto all = cases();
  Pool pool(3);
  for (const Path* path : usable_paths()) {
    if (path != &portable_path) compare(all, *path, pool);
#ifdef BITNET_EMULATED_TILES
    if (path == &avx512vnni_path) compare(all, emulated_tiles_path, pool);  // the rest of that path is AVX512-VNNI
#endif
  }
  compare(all, portable_path, pool);
  refusals();
  std::printf(failures ? "FAILED: %d\n" : "all equal\n", failures);
  return failures != 0;
}
