#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#define FUSED
#include "prelude.glsl"
#include "dot.glsl"
#include "glu.glsl"
// decoder_layer for one row: norm_matmul (q, k and v), rope_store_kv, attention, norm_matmul (added to x),
// norm_matmul_glu, norm_matmul (added to x), by MEMBERS workgroups with four barriers among them. Each workgroup has
// its rows of every matrix; it prefetches the next weights into registers while it waits. Data that others wrote since
// the last barrier is read through coherent buffers.
layout(std430, binding = 0) coherent buffer X { float x[]; };
layout(std430, binding = 0) coherent buffer X4 { vec4 x4[]; };
layout(std430, binding = 1) coherent buffer Qkv { float qkv[]; };
layout(std430, binding = 2) coherent buffer Heads { float heads[]; };
layout(std430, binding = 2) coherent buffer Heads4 { vec4 heads4[]; };
layout(std430, binding = 3) coherent buffer M { float m[]; };
layout(std430, binding = 3) coherent buffer M4 { vec4 m4[]; };
layout(std430, binding = 4) readonly buffer Step { ivec4 step_[]; };
layout(std430, binding = 5) readonly buffer Rope { vec2 rope[]; };
layout(std430, binding = 6) buffer K { uint k_cache[]; };
layout(std430, binding = 6) readonly buffer K4 { uvec4 k_cache4[]; };
layout(std430, binding = 7) buffer V { uint v_cache[]; };
layout(std430, binding = 7) readonly buffer V4 { uvec4 v_cache4[]; };
layout(std430, binding = 8) readonly buffer Tables { int tables[]; };
layout(std430, binding = 9) readonly buffer QGamma { float q_gamma[]; };
layout(std430, binding = 10) readonly buffer KGamma { float k_gamma[]; };
layout(std430, binding = 11) readonly buffer Gamma1 { vec4 gamma_qkv[]; };
layout(std430, binding = 12) readonly buffer W1 { uvec4 w_qkv[]; };
layout(std430, binding = 13) readonly buffer S1 { float scale_qkv[]; };
layout(std430, binding = 14) readonly buffer Gamma2 { vec4 gamma_o[]; };
layout(std430, binding = 15) readonly buffer W2 { uvec4 w_o[]; };
layout(std430, binding = 16) readonly buffer S2 { float scale_o[]; };
layout(std430, binding = 17) readonly buffer Gamma3 { vec4 gamma_up[]; };
layout(std430, binding = 18) readonly buffer W3 { uvec4 w_up[]; };
layout(std430, binding = 19) readonly buffer S3 { float scale_up[]; };
layout(std430, binding = 20) readonly buffer Gamma4 { vec4 gamma_down[]; };
layout(std430, binding = 21) readonly buffer W4 { uvec4 w_down[]; };
layout(std430, binding = 22) readonly buffer S4 { float scale_down[]; };
layout(std430, binding = 23) coherent buffer Meetings { uint meetings[]; };  // the workspace: counters, then parts
layout(std430, binding = 23) coherent buffer Partial { float partial[]; };
layout(push_constant) uniform Params {
    uint hidden, ffn, n_heads, n_kv_heads, head_dim, row_bytes, max_blocks;
    float scale, eps;
} p;

const uint HIDDEN = WIDTH, QUERIES = HEADS * KV_HEADS * DIM, QKV = QUERIES + 2 * KV_HEADS * DIM;
const uint WIDE = (HIDDEN + 127) / 128 * 128, WIDE_O = (QUERIES + 127) / 128 * 128, WIDE_M = (FFN + 127) / 128 * 128;
const uint WIDER = WIDE > WIDE_O ? WIDE : WIDE_O, MOST_WIDTH = WIDER > WIDE_M ? WIDER : WIDE_M;
const uint WAVES_POOL = GROUP / WAVE * HEADS * DIM / 4;  // the size that layer_attention.glsl needs
#define POOL WAVES_POOL
#include "blocks.glsl"
#include "codes_by_plane.glsl"
#include "codes.glsl"
#include "meeting.glsl"
#include "kv_octet.glsl"

const uint SLOTS = GROUP / LANES;  // rows at a time
const uint PER = (WIDE / 64 + LANES - 1) / LANES, PER_O = (WIDE_O / 64 + LANES - 1) / LANES;
const uint PER_M = (WIDE_M / 64 + LANES - 1) / LANES, UP_ROWS = ROWS;

uint slot() { return LID / LANES; }
uint most_rows(uint outs) { return (outs + MEMBERS - 1) / MEMBERS; }
uint first_of(uint outs) { return gl_WorkGroupID.x * most_rows(outs); }
uint rows_of(uint outs) { return min(most_rows(outs), outs - min(first_of(outs), outs)); }

// Pieces of a row of weights with their own scales.
#define SCALED(PIECES) (BLOCK == 0 ? 1 : PIECES)

// Loads rows START + r SLOTS + slot of this workgroup, of each of MATRICES matrices, and their scales into PACKED and
// UNITS_.
#define WEIGHTS(PACKED, UNITS_, NAME, OUTS, MATRICES, ROWS_, PIECES, WIDE_, START)                                    \
    [[unroll]] for (uint j = 0; j < MATRICES * ROWS_; j++) {                                                        \
        uint r = START + j % ROWS_ * SLOTS + slot(), n = j / ROWS_ * OUTS + first_of(OUTS) + r;                     \
        bool own = r < rows_of(OUTS);                                                                               \
        [[unroll]] for (uint i = 0; i < PIECES; i++) {                                                              \
            uint c = LID % LANES + i * LANES;                                                                       \
            PACKED[j][i] = own && c < WIDE_ / 64 ? w_##NAME[n * (WIDE_ / 64) + c] : uvec4(0);                       \
            if (BLOCK != 0)                                                                                         \
                UNITS_[j][i % SCALED(PIECES)] =                                                                     \
                    own && c < WIDE_ / 64 ? UNITS(scale_##NAME, n, c, WIDE_) : vec2(0.0);                           \
        }                                                                                                           \
        if (BLOCK == 0) UNITS_[j][0].x = own ? scale_##NAME[n] : 0.0;                                               \
    }

#define ROW(TO, FROM, COLUMNS)                                                                                      \
    [[unroll]] for (uint i = 0; i < ((COLUMNS) / 4 + GROUP - 1) / GROUP; i++)                                         \
        TO[i] = LID + i * GROUP < COLUMNS / 4 ? FROM[LID + i * GROUP] : vec4(0.0);

// Computes the products of COUNT rows of weights with the codes, over all lanes.
#define PRODUCTS(COUNT, TO, PACKED, UNITS_, PIECES, WIDE_)                                                          \
    {                                                                                                               \
        int acc[COUNT][4];                                                                                          \
        [[unroll]] for (uint j = 0; j < COUNT * 4; j++) acc[j / 4][j % 4] = 0;                                      \
        [[unroll]] for (uint j = 0; j < COUNT; j++) TO[j] = 0.0;                                                    \
        [[unroll]] for (uint i = 0; i < PIECES; i++) {                                                              \
            uint c = min(LID % LANES + i * LANES, WIDE_ / 64 - 1);                                                  \
            [[unroll]] for (uint s = 0; s < 4; s++) {                                                               \
                uvec4 q = q_shared[s * PLANE + c];                                                                  \
                [[unroll]] for (uint j = 0; j < COUNT; j++)                                                         \
                    acc[j][s] = wide_dot16(PACKED[j][i] & (0xc0c0c0c0u >> (2 * s)), q, BLOCK == 0 ? acc[j][s] : 0); \
            }                                                                                                       \
            if (BLOCK == 0) continue;                                                                               \
            vec4 scales = act_scales[c / 2 % BLOCKS], halves = act_halves[c / 2 % BLOCKS];                          \
            [[unroll]] for (uint j = 0; j < COUNT; j++)                                                             \
                TO[j] += of_chunk(ivec4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]), scales, halves,                \
                                  UNITS_[j][i % SCALED(PIECES)]);                                                   \
        }                                                                                                           \
        [[unroll]] for (uint j = 0; j < COUNT; j++) {                                                               \
            if (BLOCK == 0) {                                                                                       \
                int sum = (acc[j][0] >> 6) + (acc[j][1] >> 4) + (acc[j][2] >> 2) + acc[j][3];                       \
                [[unroll]] for (uint d = LANES / 2; d > 0; d >>= 1) sum += subgroupShuffleXor(sum, d);              \
                TO[j] = float(sum - made.sum) * made.scale * UNITS_[j][0].x;                                        \
            } else                                                                                                  \
                [[unroll]] for (uint d = LANES / 2; d > 0; d >>= 1) TO[j] += subgroupShuffleXor(TO[j], d);          \
        }                                                                                                           \
    }

// Loads the rows of weights STEP further on while the current ones are multiplied; the last iteration loads nothing.
#define NEXT(NAME, OUTS, MATRICES, ROWS_, PIECES, WIDE_, START)                                                     \
    uvec4 next[MATRICES * ROWS_][PIECES];                                                                           \
    vec2 next_units[MATRICES * ROWS_][SCALED(PIECES)];                                                              \
    if (most_rows(OUTS) > SLOTS * ROWS_) { WEIGHTS(next, next_units, NAME, OUTS, MATRICES, ROWS_, PIECES, WIDE_, START + SLOTS * ROWS_) }

#define TAKE_NEXT(NAME, OUTS, MATRICES, ROWS_, PIECES)                                                              \
    if (most_rows(OUTS) > SLOTS * ROWS_)                                                                            \
        [[unroll]] for (uint j = 0; j < MATRICES * ROWS_; j++)                                                      \
            [[unroll]] for (uint i = 0; i < PIECES; i++) {                                                          \
                packed_##NAME[j][i] = next[j][i];                                                                   \
                units_##NAME[j][i % SCALED(PIECES)] = next_units[j][i % SCALED(PIECES)];                            \
            }

// Adds to x the product of the codes with a matrix; `old` is this invocation's first row before the product.
#define ADD_TO_X(NAME, PIECES, WIDE_)                                                                               \
    [[dont_unroll]] for (uint start = 0; start < most_rows(HIDDEN); start += SLOTS) {                               \
        NEXT(NAME, HIDDEN, 1, 1, PIECES, WIDE_, start)                                                              \
        float next_old = old_x(start + SLOTS);                                                                      \
        float value[1];                                                                                             \
        PRODUCTS(1, value, packed_##NAME, units_##NAME, PIECES, WIDE_)                                              \
        uint r = start + slot();                                                                                    \
        if (LID % LANES == 0 && r < rows_of(HIDDEN))                                                                \
            x[first_of(HIDDEN) + r] = old + (lost ? uintBitsToFloat(NAN_BITS) : value[0]);                          \
        TAKE_NEXT(NAME, HIDDEN, 1, 1, PIECES)                                                                                  \
        old = next_old;                                                                                             \
    }

// Loads row `start` + slot of this workgroup's part of x.
float old_x(uint start) {
    uint r = start + slot();
    return LID % LANES == 0 && r < rows_of(HIDDEN) ? x[first_of(HIDDEN) + r] : 0.0;
}

#include "layer_attention.glsl"

void main() {
    vec4 row[ROW_WORDS], gain[ROW_WORDS];
    uvec4 packed_qkv[1][PER], packed_o[1][PER_O], packed_up[2 * UP_ROWS][PER], packed_down[1][PER_M];
    vec2 units_qkv[1][SCALED(PER)], units_o[1][SCALED(PER_O)], units_up[2 * UP_ROWS][SCALED(PER)];
    vec2 units_down[1][SCALED(PER_M)];
    float old;
    ivec4 step = step_[0];
    if (step.z < 0) step.y = -1;  // no slot: no attention
    uint position = uint(max(step.y, 0));
    int block = tables[uint(max(step.w, 0)) * p.max_blocks + position / KV_BLOCK];
    bool seen_again = step.z >= 0 && step.z == block * int(KV_BLOCK) + int(position % KV_BLOCK);
    if (LID == 0) lost = meetings[LOST] != 0;
    ROW(row, x4, HIDDEN)
    ROW(gain, gamma_qkv, HIDDEN)
    WEIGHTS(packed_qkv, units_qkv, qkv, QKV, 1, 1, PER, WIDE, 0)
    Quantized made = codes_of(row, gain, 1, HIDDEN, WIDE, p.eps);
    [[dont_unroll]] for (uint start = 0; start < most_rows(QKV); start += SLOTS) {
        NEXT(qkv, QKV, 1, 1, PER, WIDE, start)
        uint r = start + slot(), n = first_of(QKV) + r;
        float value[1];
        PRODUCTS(1, value, packed_qkv, units_qkv, PER, WIDE)
        if (r < rows_of(QKV) && LID % LANES == 0) qkv[n] = value[0];
        TAKE_NEXT(qkv, QKV, 1, 1, PER)
    }
    arrive(0);

    uint unit = gl_WorkGroupID.x;
    Share s = share_of(unit, uint(step.y + 1));
    Octet keys[BATCH][OCTETS], values[BATCH][OCTETS];
    vec2 turn[FRESH], gain_qk[FRESH];
    if (step.y >= 0 && unit < KV_HEADS * s.splits) {
        fetch(s, step, s.first, keys, values);
        turn_of(position, turn, gain_qk);
    }
    await(0);
    if (step.y < 0)
        for (uint i = gl_WorkGroupID.x * GROUP + LID; i < QUERIES; i += MEMBERS * GROUP) heads[i] = 0.0;
    while (step.y >= 0 && unit < KV_HEADS * s.splits) {
        stage(s, turn, gain_qk);
        attend(s, step, seen_again, keys, values);
        unit += MEMBERS;
        if (MEMBERS >= KV_HEADS || unit >= KV_HEADS * s.splits) break;
        s = share_of(unit, uint(step.y + 1));
        work_barrier();
        fetch(s, step, s.first, keys, values);
    }
    arrive(1);

    ROW(gain, gamma_o, QUERIES)
    WEIGHTS(packed_o, units_o, o, HIDDEN, 1, 1, PER_O, WIDE_O, 0)
    await(1);
    ROW(row, heads4, QUERIES)
    old = old_x(0);
    made = codes_of(row, gain, NORM, QUERIES, WIDE_O, p.eps);
    ADD_TO_X(o, PER_O, WIDE_O)
    arrive(2);

    ROW(gain, gamma_up, HIDDEN)
    WEIGHTS(packed_up, units_up, up, FFN, 2, UP_ROWS, PER, WIDE, 0)
    await(2);
    ROW(row, x4, HIDDEN)
    made = codes_of(row, gain, 1, HIDDEN, WIDE, p.eps);
    [[dont_unroll]] for (uint start = 0; start < most_rows(FFN); start += SLOTS * UP_ROWS) {
        NEXT(up, FFN, 2, UP_ROWS, PER, WIDE, start)
        float value[2 * UP_ROWS];
        PRODUCTS(2 * UP_ROWS, value, packed_up, units_up, PER, WIDE)
        [[unroll]] for (uint j = 0; j < UP_ROWS; j++) {
            uint r = start + j * SLOTS + slot(), n = first_of(FFN) + r;
            if (r < rows_of(FFN) && LID % LANES == 0) m[n] = glu(value[j], value[UP_ROWS + j]);
        }
        TAKE_NEXT(up, FFN, 2, UP_ROWS, PER)
    }
    arrive(3);

    ROW(gain, gamma_down, FFN)
    WEIGHTS(packed_down, units_down, down, HIDDEN, 1, 1, PER_M, WIDE_M, 0)
    await(3);
    ROW(row, m4, FFN)
    old = old_x(0);
    made = codes_of(row, gain, NORM, FFN, WIDE_M, p.eps);
    ADD_TO_X(down, PER_M, WIDE_M)
}
