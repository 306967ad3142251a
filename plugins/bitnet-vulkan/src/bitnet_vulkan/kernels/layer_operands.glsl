// The operands of decoder_layer on matrix units in the order of the contract, and the widths of its matrices.
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
layout(std430, binding = 12) readonly buffer W1 { uvec2 w_qkv[]; };
layout(std430, binding = 13) readonly buffer S1 { float scale_qkv[]; };
layout(std430, binding = 14) readonly buffer Gamma2 { vec4 gamma_o[]; };
layout(std430, binding = 15) readonly buffer W2 { uvec2 w_o[]; };
layout(std430, binding = 16) readonly buffer S2 { float scale_o[]; };
layout(std430, binding = 17) readonly buffer Gamma3 { vec4 gamma_up[]; };
layout(std430, binding = 18) readonly buffer W3 { uvec2 w_up[]; };
layout(std430, binding = 19) readonly buffer S3 { float scale_up[]; };
layout(std430, binding = 20) readonly buffer Gamma4 { vec4 gamma_down[]; };
layout(std430, binding = 21) readonly buffer W4 { uvec2 w_down[]; };
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

// Returns a row of the step buffer, with position -1 if it has no slot.
ivec4 step_of(uint row) {
    ivec4 step = step_[row];
    if (step.z < 0) step.y = -1;
    return step;
}
