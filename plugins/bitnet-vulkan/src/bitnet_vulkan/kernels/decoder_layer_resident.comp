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
// decoder_layer for up to ROOM rows, TILE_T at a time: norm_matmul (q, k and v), rope_store_kv, attention, norm_matmul
// (added to x), norm_matmul_glu, norm_matmul (added to x), by MEMBERS workgroups with four barriers among them. Each
// workgroup has its rows of every matrix; it prefetches the next weights into registers while it waits. Data that
// others wrote since the last barrier is read through coherent buffers.
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
    uint rows, hidden, ffn, n_heads, n_kv_heads, head_dim, row_bytes, max_blocks;
    float scale, eps;
} p;

const uint HIDDEN = WIDTH, QUERIES = HEADS * KV_HEADS * DIM, QKV = QUERIES + 2 * KV_HEADS * DIM;
const uint WIDE = (HIDDEN + 127) / 128 * 128, WIDE_O = (QUERIES + 127) / 128 * 128, WIDE_M = (FFN + 127) / 128 * 128;
const uint WIDER = WIDE > WIDE_O ? WIDE : WIDE_O, MOST_WIDTH = WIDER > WIDE_M ? WIDER : WIDE_M;
const uint WAVES_POOL = GROUP / WAVE * HEADS * DIM / 4;  // the size that layer_attention.glsl needs
#define POOL WAVES_POOL
#include "blocks.glsl"
#include "codes_rows.glsl"
#include "meeting.glsl"
#include "kv_octet.glsl"

const uint SLOTS = GROUP / LANES;  // matrix rows at a time
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

// Loads an invocation's words of rows FIRST .. FIRST + TILE_T - 1, or of gamma.
#define TOKENS(TO, FROM, COLUMNS, FIRST)                                                                            \
    [[unroll]] for (uint i = 0; i < ((COLUMNS) / 4 + ROW_ITEMS - 1) / ROW_ITEMS; i++) {                             \
        uint token = FIRST + LID / ROW_ITEMS, word = LID % ROW_ITEMS + i * ROW_ITEMS;                               \
        TO[i] = token < p.rows && word < COLUMNS / 4 ? FROM[token * (COLUMNS / 4) + word] : vec4(0.0);              \
    }
#define GAIN(TO, FROM, COLUMNS)                                                                                     \
    [[unroll]] for (uint i = 0; i < ((COLUMNS) / 4 + ROW_ITEMS - 1) / ROW_ITEMS; i++) {                             \
        uint word = LID % ROW_ITEMS + i * ROW_ITEMS;                                                                \
        TO[i] = word < COLUMNS / 4 ? FROM[word] : vec4(0.0);                                                        \
    }

// Adds up v[t] over the LANES neighbours; lane l gets the sum of row l modulo TILE_T in v[0]. The order of the sums is
// the same for every row.
#define OVER_LANES(KIND, NAME)                                                                                      \
    KIND NAME(KIND v[TILE_T]) {                                                                                     \
        [[unroll]] for (uint h = TILE_T / 2; h > 0; h >>= 1)                                                        \
            [[unroll]] for (uint i = 0; i < h; i++) {                                                               \
                bool upper = (LID & h) != 0;                                                                        \
                KIND kept = upper ? v[i + h] : v[i];                                                                \
                v[i] = kept + subgroupShuffleXor(upper ? v[i] : v[i + h], h);                                       \
            }                                                                                                       \
        [[unroll]] for (uint d = TILE_T; d < LANES; d <<= 1) v[0] += subgroupShuffleXor(v[0], d);                   \
        return v[0];                                                                                                \
    }
OVER_LANES(int, sum_of_codes)
OVER_LANES(float, sum_of_floats)

// Computes the products of COUNT rows of weights with the codes of row LID modulo TILE_T, over all lanes.
#define PRODUCTS(COUNT, TO, PACKED, UNITS_, PIECES, WIDE_)                                                          \
    {                                                                                                               \
        int sums[COUNT][TILE_T];                                                                                    \
        float parts[COUNT][TILE_T];                                                                                 \
        [[unroll]] for (uint j = 0; j < COUNT * TILE_T; j++) {                                                      \
            sums[j / TILE_T][j % TILE_T] = 0;                                                                       \
            parts[j / TILE_T][j % TILE_T] = 0.0;                                                                    \
        }                                                                                                           \
        if (BLOCK == 0) {                                                                                           \
            [[unroll]] for (uint s = 0; s < 4; s++) {                                                               \
                int acc[COUNT][TILE_T];                                                                             \
                [[unroll]] for (uint j = 0; j < COUNT * TILE_T; j++) acc[j / TILE_T][j % TILE_T] = 0;               \
                [[unroll]] for (uint i = 0; i < PIECES; i++) {                                                      \
                    uint c = min(LID % LANES + i * LANES, WIDE_ / 64 - 1);                                          \
                    [[unroll]] for (uint t = 0; t < TILE_T; t++) {                                                  \
                        uvec4 q = q_shared[(t * 4 + s) * PLANE + c];                                                \
                        [[unroll]] for (uint j = 0; j < COUNT; j++)                                                 \
                            acc[j][t] = wide_dot16(PACKED[j][i] & (0xc0c0c0c0u >> (2 * s)), q, acc[j][t]);          \
                    }                                                                                               \
                }                                                                                                   \
                [[unroll]] for (uint j = 0; j < COUNT; j++)                                                         \
                    [[unroll]] for (uint t = 0; t < TILE_T; t++) sums[j][t] += acc[j][t] >> (6 - 2 * s);            \
            }                                                                                                       \
        } else {                                                                                                    \
            [[unroll]] for (uint i = 0; i < PIECES; i++) {                                                          \
                uint c = min(LID % LANES + i * LANES, WIDE_ / 64 - 1);                                              \
                [[unroll]] for (uint t = 0; t < TILE_T; t++) {                                                      \
                    vec4 scales = act_scales[t * BLOCKS + c / 2 % BLOCKS];                                          \
                    vec4 halves = act_halves[t * BLOCKS + c / 2 % BLOCKS];                                          \
                    ivec4 dots[COUNT];                                                                              \
                    [[unroll]] for (uint s = 0; s < 4; s++) {                                                       \
                        uvec4 q = q_shared[(t * 4 + s) * PLANE + c];                                                \
                        [[unroll]] for (uint j = 0; j < COUNT; j++)                                                 \
                            dots[j][s] = wide_dot16(PACKED[j][i] & (0xc0c0c0c0u >> (2 * s)), q, 0);                 \
                    }                                                                                               \
                    [[unroll]] for (uint j = 0; j < COUNT; j++)                                                     \
                        parts[j][t] += of_chunk(dots[j], scales, halves, UNITS_[j][i % SCALED(PIECES)]);            \
                }                                                                                                   \
            }                                                                                                       \
        }                                                                                                           \
        uint own = LID % TILE_T;                                                                                    \
        int offset = BLOCK == 0 ? row_sum(own) : 0;                                                                 \
        [[unroll]] for (uint j = 0; j < COUNT; j++) {                                                               \
            if (BLOCK == 0)                                                                                         \
                TO[j] = float(sum_of_codes(sums[j]) - offset) * row_scales[own] * UNITS_[j][0].x;                   \
            else                                                                                                    \
                TO[j] = sum_of_floats(parts[j]);                                                                    \
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

// The weights of the first matrix rows again, for further rows of activations, if others took their place.
#define AGAIN(NAME, OUTS, MATRICES, ROWS_, PIECES, WIDE_, FIRST)                                                    \
    if (FIRST > 0 && most_rows(OUTS) > SLOTS * ROWS_) { WEIGHTS(packed_##NAME, units_##NAME, NAME, OUTS, MATRICES, ROWS_, PIECES, WIDE_, 0) }

// Adds to rows FIRST .. of x the product of the codes with a matrix; `old` is this invocation's first value before it.
#define ADD_TO_X(NAME, PIECES, WIDE_, FIRST)                                                                        \
    AGAIN(NAME, HIDDEN, 1, 1, PIECES, WIDE_, FIRST)                                                                 \
    [[dont_unroll]] for (uint start = 0; start < most_rows(HIDDEN); start += SLOTS) {                               \
        NEXT(NAME, HIDDEN, 1, 1, PIECES, WIDE_, start)                                                              \
        float next_old = old_x(FIRST, start + SLOTS);                                                               \
        float value[1];                                                                                             \
        PRODUCTS(1, value, packed_##NAME, units_##NAME, PIECES, WIDE_)                                              \
        uint r = start + slot();                                                                                    \
        if (stores(FIRST) && r < rows_of(HIDDEN))                                                                   \
            x[(FIRST + LID % LANES) * HIDDEN + first_of(HIDDEN) + r] =                                              \
                old + (lost ? uintBitsToFloat(NAN_BITS) : value[0]);                                                \
        TAKE_NEXT(NAME, HIDDEN, 1, 1, PIECES)                                                                       \
        old = next_old;                                                                                             \
    }

// Returns whether this invocation stores results, of row first + LID % LANES.
bool stores(uint first) { return LID % LANES < TILE_T && first + LID % LANES < p.rows; }

// Loads matrix row `start` + slot of this workgroup's part of x.
float old_x(uint first, uint start) {
    uint r = start + slot();
    return stores(first) && r < rows_of(HIDDEN) ? x[(first + LID % LANES) * HIDDEN + first_of(HIDDEN) + r] : 0.0;
}

// Returns a row of the step buffer, with position -1 if it has no slot.
ivec4 step_of(uint row) {
    ivec4 step = step_[row];
    if (step.z < 0) step.y = -1;
    return step;
}

#include "layer_attention.glsl"

void main() {
    vec4 row[ROW_WORDS], gain[ROW_WORDS];
    uvec4 packed_qkv[1][PER], packed_o[1][PER_O], packed_up[2 * UP_ROWS][PER], packed_down[1][PER_M];
    vec2 units_qkv[1][SCALED(PER)], units_o[1][SCALED(PER_O)], units_up[2 * UP_ROWS][SCALED(PER)];
    vec2 units_down[1][SCALED(PER_M)];
    float old;
    if (LID == 0) lost = meetings[LOST] != 0;
    WEIGHTS(packed_qkv, units_qkv, qkv, QKV, 1, 1, PER, WIDE, 0)
    [[dont_unroll]] for (uint first = 0; first < p.rows; first += TILE_T) {
        TOKENS(row, x4, HIDDEN, first)
        GAIN(gain, gamma_qkv, HIDDEN)
        quantize_rows(row, gain, 1, HIDDEN, WIDE, p.eps);
        AGAIN(qkv, QKV, 1, 1, PER, WIDE, first)
        [[dont_unroll]] for (uint start = 0; start < most_rows(QKV); start += SLOTS) {
            NEXT(qkv, QKV, 1, 1, PER, WIDE, start)
            uint r = start + slot();
            float value[1];
            PRODUCTS(1, value, packed_qkv, units_qkv, PER, WIDE)
            if (stores(first) && r < rows_of(QKV)) qkv[(first + LID % LANES) * QKV + first_of(QKV) + r] = value[0];
            TAKE_NEXT(qkv, QKV, 1, 1, PER)
        }
    }
    arrive(0);

    uint unit = gl_WorkGroupID.x;
    Share s = share_of(unit);
    Octet keys[BATCH][OCTETS], values[BATCH][OCTETS];
    vec2 turn[FRESH], gain_qk[FRESH];
    if (s.used) {
        fetch(s, s.first, keys, values);
        turn_of(s, turn, gain_qk);
    }
    await(0, MEMBERS);
    for (uint t = 0; t < p.rows; t++) {
        if (step_of(t).y >= 0) continue;
        for (uint i = gl_WorkGroupID.x * GROUP + LID; i < QUERIES; i += MEMBERS * GROUP) heads[t * QUERIES + i] = 0.0;
    }
    while (true) {
        if (s.used) {
            stage(s, turn, gain_qk);
            attend(s, keys, values);
        }
        unit += MEMBERS;
        if (MEMBERS >= ROOM * KV_HEADS * MOST_SPLITS || unit >= p.rows * KV_HEADS * MOST_SPLITS) break;
        s = share_of(unit);
        work_barrier();
        if (!s.used) continue;
        fetch(s, s.first, keys, values);
        turn_of(s, turn, gain_qk);
    }
    arrive(1);

    if (TILE_T == 1) { GAIN(gain, gamma_o, QUERIES) }
    WEIGHTS(packed_o, units_o, o, HIDDEN, 1, 1, PER_O, WIDE_O, 0)
    await(1, MEMBERS);
    [[dont_unroll]] for (uint first = 0; first < p.rows; first += TILE_T) {
        TOKENS(row, heads4, QUERIES, first)
        if (TILE_T > 1) { GAIN(gain, gamma_o, QUERIES) }
        old = old_x(first, 0);
        quantize_rows(row, gain, NORM, QUERIES, WIDE_O, p.eps);
        ADD_TO_X(o, PER_O, WIDE_O, first)
    }
    arrive(2);

    if (TILE_T == 1) { GAIN(gain, gamma_up, HIDDEN) }
    WEIGHTS(packed_up, units_up, up, FFN, 2, UP_ROWS, PER, WIDE, 0)
    await(2, MEMBERS);
    [[dont_unroll]] for (uint first = 0; first < p.rows; first += TILE_T) {
        TOKENS(row, x4, HIDDEN, first)
        if (TILE_T > 1) { GAIN(gain, gamma_up, HIDDEN) }
        quantize_rows(row, gain, 1, HIDDEN, WIDE, p.eps);
        AGAIN(up, FFN, 2, UP_ROWS, PER, WIDE, first)
        [[dont_unroll]] for (uint start = 0; start < most_rows(FFN); start += SLOTS * UP_ROWS) {
            NEXT(up, FFN, 2, UP_ROWS, PER, WIDE, start)
            float value[2 * UP_ROWS];
            PRODUCTS(2 * UP_ROWS, value, packed_up, units_up, PER, WIDE)
            [[unroll]] for (uint j = 0; j < UP_ROWS; j++) {
                uint r = start + j * SLOTS + slot();
                if (stores(first) && r < rows_of(FFN))
                    m[(first + LID % LANES) * FFN + first_of(FFN) + r] = glu(value[j], value[UP_ROWS + j]);
            }
            TAKE_NEXT(up, FFN, 2, UP_ROWS, PER)
        }
    }
    arrive(3);

    if (TILE_T == 1) { GAIN(gain, gamma_down, FFN) }
    WEIGHTS(packed_down, units_down, down, HIDDEN, 1, 1, PER_M, WIDE_M, 0)
    await(3, MEMBERS);
    [[dont_unroll]] for (uint first = 0; first < p.rows; first += TILE_T) {
        TOKENS(row, m4, FFN, first)
        if (TILE_T > 1) { GAIN(gain, gamma_down, FFN) }
        old = old_x(first, 0);
        quantize_rows(row, gain, NORM, FFN, WIDE_M, p.eps);
        ADD_TO_X(down, PER_M, WIDE_M, first)
    }
}
