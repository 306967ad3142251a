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
// decoder_layer for up to 8 rows on matrix units, for scales of whole rows, by MEMBERS workgroups with barriers among them, as
// decoder_layer_resident.comp. Each row of a product's input is normed and quantized by one workgroup, for all. Each
// workgroup has its rows of every matrix (layer_products.glsl).
#include "layer_operands.glsl"
// After the parts of attention come codes, scales and sums of the rows of a product.
layout(std430, binding = 23) coherent buffer Codes2 { uvec2 codes2[]; };
layout(std430, binding = 23) coherent buffer Sums { int sums[]; };
#include "layer_tiles.glsl"
const bool BLOCKED = false;
#define MEETINGS_OF 8
// In the memory model of matrices a compiler may read a counter only once, unless the load is atomic.
#define ARRIVED(MEETING) atomicLoad(meetings[(MEETING) * LINE], gl_ScopeDevice, 0, gl_SemanticsRelaxed)
#include "meeting.glsl"
#include "kv_octet.glsl"

#include "layer_attention.glsl"

const uint AFTER_PARTS = LOST + LINE + ROOM * KV_HEADS +
                         (MEMBERS > ROOM * KV_HEADS ? MEMBERS : ROOM * KV_HEADS) * (HEADS * DIM + 2 * HEADS);
const uint CODES_AT = (AFTER_PARTS + 1) / 2 * 2, SCALES_AT = CODES_AT + ROOM * MOST_WIDTH / 4, SUMS_AT = SCALES_AT + ROOM;
uint codes_row;  // where the codes of the row that is quantized begin
void put(uint word, uint codes) { meetings[codes_row + word] = codes; }
void put_block(uint block, float scale, int sum) {}
#include "codes.glsl"

// Norms and quantizes the row of this workgroup.
#define NORM_ROW(FROM, GAMMA, COLUMNS, NORMED, WIDE_)                                                               \
    {                                                                                                               \
        vec4 row[ROW_WORDS], gain[ROW_WORDS];                                                                       \
        [[unroll]] for (uint i = 0; i < ((COLUMNS) / 4 + GROUP - 1) / GROUP; i++) {                                 \
            uint word = LID + i * GROUP;                                                                            \
            row[i] = word < COLUMNS / 4 ? FROM[r * (COLUMNS / 4) + word] : vec4(0.0);                               \
            gain[i] = NORMED == 1 && word < COLUMNS / 4 ? GAMMA[word] : vec4(0.0);                                  \
        }                                                                                                           \
        codes_row = CODES_AT + r * (WIDE_ / 4);                                                                     \
        Quantized made = codes_of(row, gain, NORMED, COLUMNS, WIDE_, p.eps);                                        \
        if (LID == 0) {                                                                                             \
            partial[SCALES_AT + r] = made.scale;                                                                    \
            sums[SUMS_AT + r] = made.sum;                                                                           \
        }                                                                                                           \
    }

#include "layer_products.glsl"

// Workgroups below `rows` norm their row once all have arrived at DONE; all wait for them at READY.
#define NORM_FOR_ALL(DONE, READY, FROM, GAMMA, COLUMNS, NORMED, WIDE_)                                              \
    if (gl_WorkGroupID.x < p.rows) {                                                                                \
        if (DONE != READY) await(DONE, MEMBERS);                                                                    \
        for (uint r = gl_WorkGroupID.x; r < p.rows; r += MEMBERS) NORM_ROW(FROM, GAMMA, COLUMNS, NORMED, WIDE_)     \
        arrive(READY);                                                                                              \
    }

void main() {
    uint lane = gl_SubgroupInvocationID;
    if (LID == 0) lost = meetings[LOST] != 0;
    NORM_FOR_ALL(0, 0, x4, gamma_qkv, HIDDEN, 1, WIDE)
    {
        PRODUCT(qkv, QKV, 1, TILES_QKV, WIDE)
        await(0, min(p.rows, MEMBERS));
        STORE_SUMS(qkv, QKV, TILES_QKV, WIDE, ROUNDS(QKV, 1), qkv, 0)
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
    await(1, MEMBERS);
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
    arrive(2);

    NORM_FOR_ALL(2, 3, heads4, gamma_o, QUERIES, NORM, WIDE_O)
    {
        PRODUCT(o, HIDDEN, 1, TILES_X, WIDE_O)
        await(3, min(p.rows, MEMBERS));
        STORE_SUMS(o, HIDDEN, TILES_X, WIDE_O, ROUNDS(HIDDEN, 1), x, 1)
    }
    arrive(4);

    NORM_FOR_ALL(4, 5, x4, gamma_up, HIDDEN, 1, WIDE)
    {
        PRODUCT(up, FFN, 2, EACH_UP, WIDE)
        await(5, min(p.rows, MEMBERS));
        [[dont_unroll]] for (uint round = 0; round < ROUNDS_UP; round++) {
            SUM_UP(up, FFN, 2, EACH_UP, WIDE, round, ROUNDS_UP)
            [[dont_unroll]] for (uint i = LID; i < 16 * EACH_UP * p.rows; i += GROUP) {
                uint at = i % (16 * EACH_UP), row = i / (16 * EACH_UP);
                uint place = round * 16 * EACH_UP + at, n = gl_WorkGroupID.x * PART(FFN) + place;
                if (place >= PART(FFN) || n >= FFN) continue;
                float gate = summed(0, row, at, 16 * EACH_UP, scale_up[n]);
                m[row * FFN + n] = glu(gate, summed(1, row, at, 16 * EACH_UP, scale_up[FFN + n]));
            }
            if (ROUNDS_UP > 1) work_barrier();
        }
    }
    arrive(6);

    NORM_FOR_ALL(6, 7, m4, gamma_down, FFN, NORM, WIDE_M)
    {
        PRODUCT(down, HIDDEN, 1, TILES_X, WIDE_M)
        await(7, min(p.rows, MEMBERS));
        STORE_SUMS(down, HIDDEN, TILES_X, WIDE_M, ROUNDS(HIDDEN, 1), x, 1)
    }
}
