#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define FUSED
#define SUBGROUP
#include "prelude.glsl"
#include "glu.glsl"
#include "matrix_narrow.glsl"
// decoder_layer for up to 8 rows on matrix units, with block scales, by MEMBERS workgroups with barriers among them, as
// decoder_layer_resident.comp. Each row of a product's input is normed and quantized by one workgroup, for all. Each
// workgroup has its rows of every matrix (block_products.glsl).
#include "layer_operands.glsl"
// After the parts of attention come codes of the rows of a product, in the order in which lanes load them, and scales of
// the planes of each block for each row.
layout(std430, binding = 23) coherent buffer Codes4 { uvec4 codes4[]; };
layout(std430, binding = 23) coherent buffer Scales4 { vec4 scales4[]; };

#include "block_tiles.glsl"
const bool BLOCKED = true;
#define MEETINGS_OF 8
// In the memory model of matrices a compiler may read a counter only once, unless the load is atomic.
#define ARRIVED(MEETING) atomicLoad(meetings[(MEETING) * LINE], gl_ScopeDevice, 0, gl_SemanticsRelaxed)
#include "meeting.glsl"
#include "kv_octet.glsl"
#include "layer_attention.glsl"

const uint AFTER_PARTS = LOST + LINE + ROOM * KV_HEADS +
                         (MEMBERS > ROOM * KV_HEADS ? MEMBERS : ROOM * KV_HEADS) * (HEADS * DIM + 2 * HEADS);
const uint CODES_AT = (AFTER_PARTS + 3) / 4 * 4, SCALES_AT = CODES_AT + TOKENS * MOST_WIDTH / 4;
#define LANE_CODES(B, H) codes4[CODES_AT / 4 + ((B) * 2 + (H)) * 32 + lane]
#define PLANE_SCALES(B, ROW_) scales4[SCALES_AT / 4 + (B) * TOKENS + (ROW_)]
uint own_row;  // the row that is quantized
void put(uint word, uint codes) {
    uint quad = (word / 32 * 2 + word / 16 % 2) * 32 + own_row * 4 + word % 8 / 2;
    meetings[CODES_AT + quad * 4 + word / 8 % 2 * 2 + word % 2] = codes;
}
void put_block(uint block, float scale, int sum) {
    partial[SCALES_AT + (block / 4 * TOKENS + own_row) * 4 + block % 4] = scale;
}
#include "codes.glsl"
#include "block_products.glsl"

// Workgroups below `rows` norm and quantize their row once all have arrived at DONE; all wait for them at READY.
#define NORM_FOR_ALL(DONE, READY, FROM, GAMMA, COLUMNS, NORMED, WIDE_)                                              \
    if (gl_WorkGroupID.x < p.rows) {                                                                                \
        vec4 row[ROW_WORDS], gain[ROW_WORDS];                                                                       \
        [[unroll]] for (uint i = 0; i < ((COLUMNS) / 4 + GROUP - 1) / GROUP; i++) {                                 \
            uint word = LID + i * GROUP;                                                                            \
            gain[i] = NORMED == 1 && word < COLUMNS / 4 ? GAMMA[word] : vec4(0.0);                                  \
        }                                                                                                           \
        if (DONE != READY) await(DONE, MEMBERS);                                                                    \
        for (uint r = gl_WorkGroupID.x; r < p.rows; r += MEMBERS) {                                                 \
            own_row = r;                                                                                            \
            [[unroll]] for (uint i = 0; i < ((COLUMNS) / 4 + GROUP - 1) / GROUP; i++) {                             \
                uint word = LID + i * GROUP;                                                                        \
                row[i] = word < COLUMNS / 4 ? FROM[r * (COLUMNS / 4) + word] : vec4(0.0);                           \
            }                                                                                                       \
            codes_of(row, gain, NORMED, COLUMNS, WIDE_, p.eps);                                                     \
        }                                                                                                           \
        arrive(READY);                                                                                              \
    }

void main() {
    uint lane = gl_SubgroupInvocationID;
    if (LID == 0) lost = meetings[LOST] != 0;
    {
        PRODUCT(qkv, QKV, 1, TILES_QKV, WIDE)
        NORM_FOR_ALL(0, 0, x4, gamma_qkv, HIDDEN, 1, WIDE)
        await(0, min(p.rows, MEMBERS));
        MULTIPLY_ROWS(qkv, QKV, 1, TILES_QKV, WIDE, ROUNDS_QKV, qkv, 0)
    }
    arrive(1);

    uint unit = gl_WorkGroupID.x;
    Share s = share_of(unit);
    Octet keys[BATCH][OCTETS], values[BATCH][OCTETS];
    vec2 turn[FRESH], gain_qk[FRESH];
    if (s.used) {
        fetch(s, s.first, keys, values);
        turn_of(s, turn, gain_qk);
    }
    for (uint t = gl_WorkGroupID.x; t < p.rows; t += MEMBERS) {
        if (step_of(t).y >= 0) continue;
        for (uint i = LID; i < QUERIES; i += GROUP) heads[t * QUERIES + i] = 0.0;
    }
    await(1, MEMBERS);
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
    arrive(2);

    {
        PRODUCT(o, HIDDEN, 1, TILES_X, WIDE_O)
        NORM_FOR_ALL(2, 3, heads4, gamma_o, QUERIES, NORM, WIDE_O)
        await(3, min(p.rows, MEMBERS));
        MULTIPLY_ROWS(o, HIDDEN, 1, TILES_X, WIDE_O, ROUNDS_X, x, 1)
    }
    arrive(4);

    {
        PRODUCT(up, FFN, 2, TILES_UP, WIDE)
        NORM_FOR_ALL(4, 5, x4, gamma_up, HIDDEN, 1, WIDE)
        await(5, min(p.rows, MEMBERS));
        MULTIPLY_ROWS(up, FFN, 2, TILES_UP, WIDE, ROUNDS_UP, m, 0)
    }
    arrive(6);

    {
        PRODUCT(down, HIDDEN, 1, TILES_X, WIDE_M)
        NORM_FOR_ALL(6, 7, m4, gamma_down, FFN, NORM, WIDE_M)
        await(7, min(p.rows, MEMBERS));
        MULTIPLY_ROWS(down, HIDDEN, 1, TILES_X, WIDE_M, ROUNDS_X, x, 1)
    }
}
