#include "check.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace bitnet {

namespace {

constexpr std::array<const char*, KERNEL_COUNT> NAMES = {
    "embed_rows",        "rms_norm_quantize", "matmul_ternary", "matmul_ternary_block", "rope_store_kv", "attention",
    "glu_norm_quantize", "rms_norm",          "matmul_dense",   "argmax_advance",       "top_k",
    "embed_rows_ternary", "pack_head", "approx_logits", "refine_logits",
    "hadamard_rotate", "glu", "causal_conv1d", "gated_delta_rule", "gated_rms_norm", "route_experts", "matmul_experts",
    "clamp_glu_quantize", "sum_experts", "window_attention"};
constexpr std::array<size_t, KERNEL_COUNT> VIEWS = {3, 5, 6, 6, 8, 6, 5, 4, 3, 6, 5, 4, 4, 6, 5, 3, 2, 5, 7, 4,
                                                   3, 7, 4, 3, 6};
constexpr uint64_t MOST_WIDTH = 1u << 20;  // columns: 32-bit sums and float counts stay exact
constexpr uint64_t MOST_ELEMENTS = uint64_t(1) << 40;

class Checker {
 public:
  explicit Checker(const Launch& launch) : launch_(launch) {}

  [[noreturn]] void fail(const std::string& text) const { throw LaunchFault(NAMES[launch_.kernel] + (": " + text)); }

  void require(bool condition, const char* text) const {
    if (!condition) fail(text);
  }

  // Checks that view `index` holds rows * columns elements of `size` bytes, aligned for 4-byte types.
  void holds(uint32_t index, const char* name, uint64_t rows, uint64_t columns, uint64_t size) const {
    require(rows <= MOST_ELEMENTS && columns <= MOST_ELEMENTS, "a size is absurd");
    const unsigned __int128 bytes = static_cast<unsigned __int128>(rows) * columns * size;
    const Bytes& view = launch_.views[index];
    if (bytes > view.size) {
      fail(std::string(name) + " holds " + std::to_string(view.size) + " bytes, the launch needs " +
           std::to_string(uint64_t(std::min<unsigned __int128>(bytes, UINT64_MAX))));
    }
    if (size == 4 && reinterpret_cast<uintptr_t>(view.data) % 4 != 0) fail(std::string(name) + " is not aligned to 4 bytes");
  }

  void aligned(uint32_t index, const char* name) const { holds(index, name, 0, 0, 4); }

  // f32[rows, stride], with columns first..first + count written.
  void output(uint32_t index, const char* name, uint64_t rows, uint64_t stride, uint64_t first, uint64_t count) const {
    require(first + count <= stride, "y_first + outs is more than y_stride");
    holds(index, name, (rows - 1) * stride + first + count, 1, 4);
  }

 private:
  const Launch& launch_;
};

uint64_t row_bytes(const Checker& check, uint32_t dtype, uint64_t width) {
  check.require(dtype != Q8_0 || width % 32 == 0, "q8_0 rows are multiples of 32 columns");
  check.require(dtype != Q6_K || width % 256 == 0, "q6_K rows are multiples of 256 columns");
  switch (dtype) {
    case F32: return width * 4;
    case Q8_0: return width / 32 * 34;
    case Q6_K: return width / 256 * 210;
    default: return width * 2;
  }
}

void check_embed(const Launch& l, const Checker& check) {
  const auto p = params_of<EmbedParams>(l);
  check.require(p.hidden > 0, "hidden is 0");
  check.holds(0, "table", p.count, row_bytes(check, l.constants.dtype, p.hidden), 1);
  check.holds(1, "step", p.rows, 4, 4);
  check.holds(2, "x", p.rows, p.hidden, 4);
}

size_t check_quantize(const Launch& l, const Checker& check, uint64_t inputs) {
  const auto p = params_of<QuantizeParams>(l);
  check.require(p.width > 0 && p.width <= MOST_WIDTH && p.stride >= p.width && p.stride <= 2 * MOST_WIDTH,
                "width or stride makes no sense");
  check.holds(0, inputs == 1 ? "x" : "gate_up", p.rows, inputs * p.width, 4);
  if (l.constants.norm) check.holds(1, "gamma", p.width, 1, 4);
  const uint32_t block = l.constants.ablock, scales = scales_of(p.stride, block);
  check.require(block == 0 || p.stride % 128 == 0, "stride is no multiple of 128");
  check.holds(2, "q", p.rows, p.stride, 1);
  check.holds(3, "scale", p.rows, scales, 4);
  check.holds(4, "qsum", p.rows, scales, 4);
  return size_t(p.width) * 4;
}

MatmulParams check_matmul(const Launch& l, const Checker& check, uint32_t q, uint32_t y) {
  const auto p = params_of<MatmulParams>(l);
  check.require(p.rows > 0 && p.outs > 0, "rows or outs is 0");
  check.require(p.width > 0 && p.width <= MOST_WIDTH, "width makes no sense");
  check.output(y, "y", p.rows, p.y_stride, p.y_first, p.outs);
  if (q != 0) {
    check.require(p.width % 128 == 0, "width is no multiple of 128");
    check.holds(0, "w", p.outs, p.width / 4, 1);
    check.holds(q, "q", p.rows, p.width, 1);
    const uint32_t scales = scales_of(p.width, l.constants.ablock);
    check.holds(q + 1, "scale", p.rows, scales, 4);
    check.holds(q + 2, "qsum", p.rows, scales, 4);
  }
  return p;
}

template <class P>
void check_cache(const Launch& l, const Checker& check, const P& p, uint32_t k, uint32_t v) {
  check.require(p.head_dim > 0 && p.head_dim <= 4096 && p.head_dim % 2 == 0, "head_dim is odd or makes no sense");
  check.require(p.n_kv_heads > 0 && p.n_heads > 0 && p.n_heads <= 65536 && p.n_heads % p.n_kv_heads == 0,
                "n_heads is no multiple of n_kv_heads");
  const uint32_t least = l.constants.kv == KV_F32 ? 4 * p.head_dim : l.constants.kv == KV_F16 ? 2 * p.head_dim : 4 + p.head_dim;
  check.require(p.row_bytes >= least && p.row_bytes <= 65536, "row_bytes does not fit the cache type");
  check.require(l.constants.kv == KV_F16 || p.row_bytes % 4 == 0, "row_bytes is no multiple of 4");
  check.aligned(k, "k_cache");
  check.aligned(v, "v_cache");
}

size_t check_rope(const Launch& l, const Checker& check) {
  const auto p = params_of<RopeParams>(l);
  check_cache(l, check, p, 6, 7);
  check.holds(0, "qkv", p.rows, (p.n_heads + 2 * uint64_t(p.n_kv_heads)) * p.head_dim, 4);
  check.holds(1, "step", p.rows, 4, 4);
  check.aligned(2, "rope");
  if (l.constants.qknorm) {
    check.holds(3, "q_gamma", p.head_dim, 1, 4);
    check.holds(4, "k_gamma", p.head_dim, 1, 4);
  }
  check.holds(5, "q", p.rows, uint64_t(p.n_heads) * p.head_dim, 4);
  return size_t(p.head_dim) * 8;
}

size_t check_attention(const Launch& l, const Checker& check) {
  const auto p = params_of<AttentionParams>(l);
  check_cache(l, check, p, 1, 2);
  check.require(p.max_blocks > 0, "max_blocks is 0");
  check.holds(0, "q", p.rows, uint64_t(p.n_heads) * p.head_dim, 4);
  check.holds(3, "step", p.rows, 4, 4);
  check.aligned(4, "tables");
  check.holds(5, "out", p.rows, uint64_t(p.n_heads) * p.head_dim, 4);
  // Two decoded blocks; per query its copy, scores, sums and softmax state; the same for the heads of a single row.
  const size_t padded = (size_t(p.head_dim) + 15) / 16 * 16, queries = size_t(std::min(l.constants.tile_t, p.rows)) *
                                                                       std::min(l.constants.tile_n, p.n_heads / p.n_kv_heads);
  return 4 * (2 * KV_BLOCK * padded + (queries + 4) * (KV_BLOCK + 2 * padded + 2));
}

void check_norm(const Launch& l, const Checker& check) {
  const auto p = params_of<NormParams>(l);
  check.require(p.width > 0 && p.width <= MOST_WIDTH, "width makes no sense");
  check.aligned(0, "x");
  check.holds(1, "index", p.rows, 1, 4);
  check.holds(2, "gamma", p.width, 1, 4);
  check.holds(3, "y", p.rows, p.width, 4);
}

// Rows of logits that are `stride` apart, and their mask if there is one.
void check_logits(const Launch& l, const Checker& check, uint64_t rows, uint64_t vocab, uint64_t stride) {
  check.require(vocab > 0 && vocab <= INT32_MAX && stride >= vocab, "vocab or stride makes no sense");
  check.holds(0, "logits", (rows - 1) * stride + vocab, 1, 4);
  if (l.constants.mask) check.holds(1, "mask", rows, (vocab + 31) / 32, 4);
}

void check_argmax(const Launch& l, const Checker& check) {
  const auto p = params_of<ArgmaxParams>(l);
  check.require(p.max_blocks > 0, "max_blocks makes no sense");
  check_logits(l, check, p.rows, p.vocab, p.stride);
  check.holds(2, "index", p.rows, 1, 4);
  check.aligned(3, "tables");
  check.aligned(4, "step");
  check.aligned(5, "history");
}

void check_top_k(const Launch& l, const Checker& check) {
  const auto p = params_of<TopKParams>(l);
  check.require(p.k > 0 && p.k <= 256 && p.k <= p.vocab, "k is not in 1..min(256, vocab)");
  check_logits(l, check, p.rows, p.vocab, p.stride);
  check.holds(2, "ids", p.rows, p.k, 4);
  check.holds(3, "values", p.rows, p.k, 4);
  check.holds(4, "total", p.rows, 2, 4);
}

void check_embed_ternary(const Launch& l, const Checker& check) {
  const auto p = params_of<EmbedTernaryParams>(l);
  check.require(p.hidden > 0 && p.width >= p.hidden && p.width % 128 == 0 && p.width <= MOST_WIDTH, "width makes no sense");
  check.holds(0, "w", p.count, p.width / 4, 1);
  check.holds(1, "wscale", p.count, ceil_div(p.width, l.constants.block), 4);
  check.holds(2, "step", p.rows, 4, 4);
  check.holds(3, "x", p.rows, p.hidden, 4);
}

constexpr uint32_t MOST_HEAD_WIDTH = 16384;  // up to this width the error norms include their margin for f32 rounding

void check_head(const Checker& check, uint64_t outs, uint32_t width) {
  check.require(outs > 0 && outs <= INT32_MAX && width > 0 && width <= MOST_HEAD_WIDTH, "outs or width makes no sense");
}

size_t check_pack(const Launch& l, const Checker& check) {
  const auto p = params_of<PackParams>(l);
  check_head(check, p.outs, p.width);
  check.holds(0, "w", p.outs, p.width, 2);
  check.holds(1, "codes", p.outs, p.width, 1);
  check.holds(2, "scale", p.outs, 1, 4);
  check.holds(3, "error", p.outs, 1, 4);
  return size_t(p.width) * 4;
}

size_t check_approx(const Launch& l, const Checker& check) {
  const auto p = params_of<DraftParams>(l);
  check_head(check, p.outs, p.width);
  check.holds(0, "x", p.rows, p.width, 4);
  check.holds(1, "codes", p.outs, p.width, 1);
  check.holds(2, "scale", p.outs, 1, 4);
  check.holds(3, "error", p.outs, 1, 4);
  check.output(4, "logits", p.rows, p.stride, 0, p.outs);
  check.holds(5, "bound", p.rows, ceil_div(p.outs, HEAD_GROUP), 4);
  return size_t(p.width) * 4;
}

size_t check_refine(const Launch& l, const Checker& check) {
  const auto p = params_of<RescoreParams>(l);
  check_head(check, p.outs, p.width);
  check.require(p.k > 0 && p.k <= 256, "k is not in 1..256");
  check.holds(0, "x", p.rows, p.width, 4);
  check.holds(1, "w", p.outs, p.width, 2);
  check.holds(2, "error", p.outs, 1, 4);
  check.holds(3, "bound", p.rows, ceil_div(p.outs, HEAD_GROUP), 4);
  check.output(4, "logits", p.rows, p.stride, 0, p.outs);
  return size_t(p.k) * 8;
}

size_t check_hadamard(const Launch& l, const Checker& check) {
  const auto p = params_of<HadamardParams>(l);
  const bool power = p.block >= 2 && p.block <= 16384 && (p.block & (p.block - 1)) == 0;
  check.require(power && p.width > 0 && p.width <= MOST_WIDTH && p.width % p.block == 0, "block or width makes no sense");
  check.holds(0, "x", p.rows, p.width, 4);
  check.holds(1, "signs", p.width, 1, 4);
  check.holds(2, "y", p.rows, p.width, 4);
  return size_t(p.block) * 4;
}

void check_glu(const Launch& l, const Checker& check) {
  const auto p = params_of<GluParams>(l);
  check.require(p.width > 0 && p.width <= MOST_WIDTH, "width makes no sense");
  check.holds(0, "gate_up", p.rows, 2 * uint64_t(p.width), 4);
  check.holds(1, "m", p.rows, p.width, 4);
}

size_t check_conv(const Launch& l, const Checker& check) {
  const auto p = params_of<ConvParams>(l);
  check.require(p.channels > 0 && p.channels <= MOST_WIDTH && p.taps >= 2 && p.taps <= 64, "channels or taps makes no sense");
  check.holds(0, "x", p.rows, p.channels, 4);
  check.holds(1, "step", p.rows, 4, 4);
  check.holds(2, "weight", p.channels, p.taps, 4);
  check.holds(3, "state", p.taps - 1, p.channels, 4);
  check.holds(4, "y", p.rows, p.channels, 4);
  return size_t(l.constants.tile_n) * (p.taps + 2) * 4;
}

size_t check_delta(const Launch& l, const Checker& check) {
  const auto p = params_of<DeltaParams>(l);
  check.require(p.key_dim > 0 && p.key_dim <= 1024 && p.value_dim > 0 && p.value_dim <= 1024, "key_dim or value_dim makes no sense");
  check.require(p.n_key_heads > 0 && p.n_heads > 0 && p.n_heads <= 4096 && p.n_heads % p.n_key_heads == 0,
                "n_heads is no multiple of n_key_heads");
  const uint64_t columns = uint64_t(p.n_heads) * p.value_dim;
  check.holds(0, "qkv", p.rows, 2 * uint64_t(p.n_key_heads) * p.key_dim + columns, 4);
  check.holds(1, "gates", p.rows, 2 * uint64_t(p.n_heads), 4);
  check.holds(2, "rate", p.n_heads, 1, 4);
  check.holds(3, "dt", p.n_heads, 1, 4);
  check.holds(4, "step", p.rows, 4, 4);
  check.holds(5, "state", p.key_dim, columns, 4);
  check.holds(6, "out", p.rows, columns, 4);
  return size_t(p.key_dim) * 8;
}

size_t check_gated_norm(const Launch& l, const Checker& check) {
  const auto p = params_of<GatedNormParams>(l);
  check.require(p.n_heads > 0 && p.n_heads <= 65536 && p.head_dim > 0 && p.head_dim <= 65536, "n_heads or head_dim makes no sense");
  check.require(p.groups > 0 && p.n_heads % p.groups == 0, "groups is no divisor of n_heads");
  const uint64_t width = uint64_t(p.n_heads) * p.head_dim;
  check.holds(0, "x", p.rows, width, 4);
  check.holds(1, "gate", p.rows, width, 4);
  if (l.constants.norm) check.holds(2, "gamma", p.head_dim, 1, 4);
  check.holds(3, "y", p.rows, width, 4);
  return size_t(p.head_dim) * 4;
}

constexpr uint32_t MOST_EXPERTS = 65536, MOST_PAIRS = 1u << 24;

void check_route(const Launch& l, const Checker& check) {
  const auto p = params_of<RouteParams>(l);
  check.require(p.experts > 0 && p.experts <= MOST_EXPERTS && p.used > 0 && p.used <= 256 && p.used <= p.experts,
                "experts or used makes no sense");
  check.holds(0, "logits", p.rows, p.experts, 4);
  check.holds(1, "ids", p.rows, p.used, 4);
  check.holds(2, "weights", p.rows, p.used, 4);
}

size_t check_experts(const Launch& l, const Checker& check, const Path& path) {
  const auto p = params_of<ExpertParams>(l);
  const uint64_t pairs = uint64_t(p.rows) * p.used, matrices = uint64_t(p.experts) * p.outs;
  check.require(p.outs > 0 && p.outs <= MOST_WIDTH && p.width > 0 && p.width <= MOST_WIDTH && p.width % 128 == 0,
                "outs or width makes no sense");
  check.require(p.experts > 0 && p.experts <= MOST_EXPERTS && p.used > 0 && pairs <= MOST_PAIRS, "experts or used makes no sense");
  check.require(p.inputs == 1 || p.inputs == p.used, "inputs is neither 1 nor used");
  const uint32_t blocks = ceil_div(p.width, l.constants.block), scales = scales_of(p.width, l.constants.ablock);
  check.holds(0, "w", matrices, p.width / 4, 1);
  check.holds(1, "wscale", matrices, blocks, 4);
  check.holds(2, "q", uint64_t(p.rows) * p.inputs, p.width, 1);
  check.holds(3, "scale", uint64_t(p.rows) * p.inputs, scales, 4);
  check.holds(4, "qsum", uint64_t(p.rows) * p.inputs, scales, 4);
  check.holds(5, "ids", p.rows, p.used, 4);
  check.output(6, "y", pairs, p.y_stride, p.y_first, p.outs);
  const size_t panel = (size_t(p.width) + size_t(blocks) * 4) * path.panel_rows;  // more than the scales of a few tokens
  return panel + PAIRS_AT_ONCE * (size_t(p.width) + 8 * size_t(scales));
}

size_t check_clamp(const Launch& l, const Checker& check) {
  const auto p = params_of<ClampParams>(l);
  check.require(p.width > 0 && p.width <= MOST_WIDTH && p.stride >= p.width && p.stride <= 2 * MOST_WIDTH,
                "width or stride makes no sense");
  const uint32_t block = l.constants.ablock, scales = scales_of(p.stride, block);
  check.require(block == 0 || p.stride % 128 == 0, "stride is no multiple of 128");
  check.holds(0, "gate_up", p.rows, 2 * uint64_t(p.width), 4);
  check.holds(1, "q", p.rows, p.stride, 1);
  check.holds(2, "scale", p.rows, scales, 4);
  check.holds(3, "qsum", p.rows, scales, 4);
  return size_t(p.width) * 4;
}

void check_sum(const Launch& l, const Checker& check) {
  const auto p = params_of<SumParams>(l);
  check.require(p.width > 0 && p.width <= MOST_WIDTH && p.used > 0 && p.used <= MOST_EXPERTS, "width or used makes no sense");
  check.holds(0, "y", uint64_t(p.rows) * p.used, p.width, 4);
  check.holds(1, "weights", p.rows, p.used, 4);
  check.holds(2, "x", p.rows, p.width, 4);
}

// Checks the bounds of one launch. Returns the bytes of scratch that it needs.
size_t check_bounds(const Launch& l, const Checker& check, const Path& path) {
  switch (l.kernel) {
    case EMBED_ROWS: return check_embed(l, check), 0;
    case RMS_NORM_QUANTIZE: return check_quantize(l, check, 1);
    case GLU_NORM_QUANTIZE: return check_quantize(l, check, 2);
    case MATMUL_TERNARY: {
      const auto p = check_matmul(l, check, 2, 5);
      check.holds(1, "wscale", p.outs, 1, 4);
      return size_t(p.width) * path.panel_rows;
    }
    case MATMUL_TERNARY_BLOCK: {
      const auto p = check_matmul(l, check, 2, 5);
      const uint32_t blocks = ceil_div(p.width, l.constants.block);
      check.holds(1, "wscale", p.outs, blocks, 4);
      return (size_t(p.width) + size_t(blocks) * 4) * path.panel_rows;  // more than the scales of a few tokens
    }
    case MATMUL_DENSE: {
      const auto p = check_matmul(l, check, 0, 2);
      check.holds(0, "x", p.rows, p.width, 4);
      check.holds(1, "w", p.outs, row_bytes(check, l.constants.dtype, p.width), 1);
      if (l.constants.dtype == F32) check.aligned(1, "w");
      return 0;
    }
    case ROPE_STORE_KV: return check_rope(l, check);
    case ATTENTION: return check_attention(l, check);
    case RMS_NORM: return check_norm(l, check), 0;
    case ARGMAX_ADVANCE: return check_argmax(l, check), 0;
    case TOP_K: return check_top_k(l, check), 0;
    case EMBED_ROWS_TERNARY: return check_embed_ternary(l, check), 0;
    case PACK_HEAD: return check_pack(l, check);
    case APPROX_LOGITS: return check_approx(l, check);
    case REFINE_LOGITS: return check_refine(l, check);
    case HADAMARD_ROTATE: return check_hadamard(l, check);
    case GLU: return check_glu(l, check), 0;
    case CAUSAL_CONV1D: return check_conv(l, check);
    case GATED_DELTA_RULE: return check_delta(l, check);
    case GATED_RMS_NORM: return check_gated_norm(l, check);
    case ROUTE_EXPERTS: return check_route(l, check), 0;
    case MATMUL_EXPERTS: return check_experts(l, check, path);
    case CLAMP_GLU_QUANTIZE: return check_clamp(l, check);
    case SUM_EXPERTS: return check_sum(l, check), 0;
    case WINDOW_ATTENTION: check.require(l.params[7] > 0, "window is 0"); return check_attention(l, check);
    default: check.fail("is no kernel");
  }
}

// The geometry of the catalogue.
std::array<uint64_t, 3> expected_grid(const Launch& l) {
  const uint64_t rows = l.params[0], n = l.constants.tile_n, t = l.constants.tile_t;
  const auto tiles = [](uint64_t count, uint64_t tile) { return (count + tile - 1) / tile; };
  switch (l.kernel) {
    case EMBED_ROWS:
    case EMBED_ROWS_TERNARY: return {tiles(l.params[1], n), rows, 1};
    case PACK_HEAD: return {tiles(rows, n), 1, 1};
    case APPROX_LOGITS:
    case REFINE_LOGITS:
    case MATMUL_TERNARY:
    case MATMUL_TERNARY_BLOCK:
    case MATMUL_DENSE:
    case ATTENTION:
    case WINDOW_ATTENTION: return {tiles(l.params[1], n), tiles(rows, t), 1};
    case MATMUL_EXPERTS: return {tiles(l.params[1], n), std::min(rows * l.params[6], uint64_t(l.params[5])), 1};
    case HADAMARD_ROTATE: return {l.params[1] / l.params[2], rows, 1};
    case CAUSAL_CONV1D: return {tiles(l.params[1], n), 1, 1};
    case GATED_DELTA_RULE: return {l.params[1], tiles(l.params[4], n), 1};
    case GATED_RMS_NORM: return {l.params[1], rows, 1};
    case ROPE_STORE_KV: return {tiles(uint64_t(l.params[1]) + 2 * uint64_t(l.params[2]), n), rows, 1};
    default: return {rows, 1, 1};
  }
}

}  // namespace

KernelId kernel_id(const std::string& name) {
  for (uint32_t i = 0; i < KERNEL_COUNT; ++i)
    if (name == NAMES[i]) return KernelId(i);
  throw Unsupported("there is no kernel " + name);
}

void check_constants(KernelId id, const Constants& c) {
  const auto require = [id](bool right, const char* text) {
    if (!right) throw Unsupported(NAMES[id] + (": " + std::string(text)));
  };
  require(c.dtype <= Q6_K && c.norm <= 1 && c.add <= 1 && c.kv <= KV_INT8 && c.interleaved <= 1 && c.qknorm <= 1 &&
              c.act <= (id == GATED_RMS_NORM ? 2 : 1) && c.mask <= 1 && c.inverse <= 1 && (c.ablock == 0 || c.ablock == 32 || c.ablock == 128),
          "a constant is outside the catalogue");
  const bool blocks = id == MATMUL_TERNARY_BLOCK || id == EMBED_ROWS_TERNARY || id == MATMUL_EXPERTS;
  require(!blocks || c.block == 64 || c.block == 128 || c.block == 256, "BLOCK is not 64, 128 or 256");
  const bool tokens = id == MATMUL_TERNARY || id == MATMUL_TERNARY_BLOCK || id == MATMUL_DENSE ||
                      id == ATTENTION || id == WINDOW_ATTENTION;
  const bool head = id == APPROX_LOGITS || id == REFINE_LOGITS, embed = id == EMBED_ROWS || id == EMBED_ROWS_TERNARY;
  require(!(tokens || head) || (c.tile_n != 0 && c.tile_t != 0), "a tile size is missing");
  require(!head || c.tile_t == 1, "a workgroup is for one row");
  require(!(embed || head) || (c.tile_n != 0 && c.tile_n % 256 == 0), "TILE_N is no multiple of 256");
  require(id != ROPE_STORE_KV || c.tile_n == 1, "a workgroup is for one head");
  const bool tiled = id == PACK_HEAD || id == CAUSAL_CONV1D || id == GATED_DELTA_RULE || id == MATMUL_EXPERTS;
  require(!tiled || (c.tile_n != 0 && c.tile_n <= MOST_WIDTH), "TILE_N is missing, or absurd");
}

void prepare(Launch& launch, size_t view_count, const Path& path) {
  const Checker check(launch);
  if (view_count != VIEWS[launch.kernel])
    check.fail("binds " + std::to_string(VIEWS[launch.kernel]) + " views, not " + std::to_string(view_count));
  check.require(launch.params[0] > 0, "rows is 0");
  launch.scratch = check_bounds(launch, check, path);
  const auto grid = expected_grid(launch);
  for (uint32_t i = 0; i < 3; ++i) check.require(grid[i] == launch.grid[i], "the grid is not the catalogue's for these parameters");
  check.require(grid[0] * grid[1] <= UINT32_MAX, "the grid has too many workgroups");
  launch.workgroups = uint32_t(grid[0] * grid[1]);
  launch.run = path.kernels[launch.kernel];
}

bool may_run_beside(const Launch& before, const Launch& launch) {
  if (launch.kernel != before.kernel || (launch.kernel != MATMUL_TERNARY && launch.kernel != MATMUL_TERNARY_BLOCK)) return false;
  for (uint32_t i = 2; i < VIEWS[MATMUL_TERNARY]; ++i)  // q, scale, qsum, y
    if (launch.views[i].data != before.views[i].data) return false;
  const auto a = params_of<MatmulParams>(before), b = params_of<MatmulParams>(launch);
  return a.rows == b.rows && a.y_stride == b.y_stride && a.y_first + a.outs <= b.y_first;
}

}  // namespace bitnet
