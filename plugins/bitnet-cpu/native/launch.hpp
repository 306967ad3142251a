// The description of one launch for the kernels. Plain data only, and functions of internal linkage: this header is
// compiled into every code path, each with its own instruction set, and the linker must never merge an AVX-512 copy
// into a baseline one.
#pragma once
#include <cstddef>
#include <cstdint>

namespace bitnet {

enum KernelId : uint32_t {
  EMBED_ROWS,
  RMS_NORM_QUANTIZE,
  MATMUL_TERNARY,
  MATMUL_TERNARY_BLOCK,
  ROPE_STORE_KV,
  ATTENTION,
  GLU_NORM_QUANTIZE,
  RMS_NORM,
  MATMUL_DENSE,
  ARGMAX_ADVANCE,
  TOP_K,
  EMBED_ROWS_TERNARY,
  PACK_HEAD,
  APPROX_LOGITS,
  REFINE_LOGITS,
  HADAMARD_ROTATE,
  GLU,
  CAUSAL_CONV1D,
  GATED_DELTA_RULE,
  GATED_RMS_NORM,
  ROUTE_EXPERTS,
  MATMUL_EXPERTS,
  CLAMP_GLU_QUANTIZE,
  SUM_EXPERTS,
  WINDOW_ATTENTION,
  KERNEL_COUNT,
};

enum Dtype : uint32_t { F32, F16, BF16, Q8_0, Q6_K };
enum KvCacheType : uint32_t { KV_F32, KV_F16, KV_INT8 };

constexpr uint32_t KV_BLOCK = 64;
constexpr uint32_t HEAD_GROUP = 64;  // rows of a head that share a lower bound
constexpr uint32_t PART = 32;        // columns that share a scale and a sum of quantized activations, if ABLOCK is not 0
constexpr uint32_t PAIRS_AT_ONCE = 48;  // rows of one expert that are multiplied together
constexpr uint32_t MAX_VIEWS = 8;
constexpr uint32_t MAX_PARAMS = 8;

struct Bytes {
  uint8_t* data;
  size_t size;
};

// Compile-time constants of the catalogue, and tile sizes; 0 if a kernel lacks one.
struct Constants {
  uint32_t dtype, norm, add, block, ablock, kv, interleaved, qknorm, act, mask, inverse, tile_n, tile_t;
};

// Scales (and sums) of a row of quantized activations.
static inline uint32_t scales_of(uint32_t width, uint32_t ablock) { return ablock != 0 ? width / PART : 1; }

struct Launch;
// Runs workgroups begin..end (x fastest). scratch: the calling thread's own, launch.scratch bytes, 64-byte aligned.
using Run = void (*)(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch);

struct Launch {
  KernelId kernel;
  Run run;
  Constants constants;
  Bytes views[MAX_VIEWS];
  uint32_t params[MAX_PARAMS];  // as packed by core: u32, or the bits of an f32
  uint32_t grid[3];
  uint32_t workgroups;
  bool beside;  // may run while the launch before it runs
  size_t scratch;
};

// Parameters of the kernels, in the catalogue's order.
struct EmbedParams {
  uint32_t rows, hidden, first, count;
};
struct QuantizeParams {
  uint32_t rows, width, stride;
  float eps;
};
struct MatmulParams {
  uint32_t rows, outs, width, y_stride, y_first;
};
struct RopeParams {
  uint32_t rows, n_heads, n_kv_heads, head_dim, row_bytes;
  float eps;
};
struct AttentionParams {
  uint32_t rows, n_heads, n_kv_heads, head_dim, row_bytes, max_blocks;
  float scale;
};
struct NormParams {
  uint32_t rows, width;
  float eps;
};
struct ArgmaxParams {
  uint32_t rows, vocab, stride, max_blocks, ring;
};
struct TopKParams {
  uint32_t rows, vocab, stride, k;
};
struct EmbedTernaryParams {
  uint32_t rows, hidden, width, first, count;
};
struct PackParams {
  uint32_t outs, width;
};
struct DraftParams {
  uint32_t rows, outs, width, stride;
};
struct RescoreParams {
  uint32_t rows, outs, width, stride, k;
};
struct HadamardParams {
  uint32_t rows, width, block;
};
struct GluParams {
  uint32_t rows, width;
};
struct ConvParams {
  uint32_t rows, channels, taps;
};
struct DeltaParams {
  uint32_t rows, n_heads, n_key_heads, key_dim, value_dim;
  float eps;
};
struct GatedNormParams {
  uint32_t rows, n_heads, head_dim, groups;
  float eps;
};

struct RouteParams {
  uint32_t rows, experts, used;
};
struct ExpertParams {
  uint32_t rows, outs, width, y_stride, y_first, experts, used, inputs;
};
struct ClampParams {
  uint32_t rows, width, stride;
  float limit;
};
struct SumParams {
  uint32_t rows, width, used;
};

template <class P>
static inline P params_of(const Launch& launch) {
  static_assert(sizeof(P) <= sizeof(launch.params), "more parameters than a launch holds");
  P p;
  __builtin_memcpy(&p, launch.params, sizeof p);
  return p;
}

template <class T>
static inline T* view(const Launch& launch, uint32_t index) {
  return reinterpret_cast<T*>(launch.views[index].data);
}

struct Step {
  int32_t token, position, slot, sequence;
};

static inline uint32_t ceil_div(uint32_t a, uint32_t b) { return a / b + (a % b != 0); }
static inline uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

// One implementation of all kernels for one instruction set.
struct Path {
  const char* name;
  Run kernels[KERNEL_COUNT];
  uint32_t panel_rows;  // matrix rows that the prefill kernel multiplies together
};

extern const Path portable_path;
extern const Path avx2_path, avxvnni_path, avx512vnni_path, amx_path;
extern const Path neon_path, neon_dotprod_path, neon_i8mm_path;

}  // namespace bitnet
