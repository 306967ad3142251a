// y = gated_rms_norm of x, gate and gamma (gated_rms_norm.cl); then H(signs * y) for each `block` columns, quantized
// (rotate_quantize.clh). x, gate f32[rows, n_heads, head_dim]; gamma f32[head_dim]; signs f32[n_heads * head_dim]; q
// i8, scale f32, qsum i32 as in glu_rotate_quantize.cl.
// Group: a block of a row, at most ROOM columns, which are whole heads if NORM is 1.
#include "rotate_quantize.clh"
KERNEL gated_rotate_quantize(ARGUMENTS) {
    PARAMETERS
    AT_IN(float4, x);
    AT_IN(float4, gate);
    AT_IN(float4, gamma);
    AT_IN(float4, signs);
    AT_OUT(char, q);
    AT_OUT(float, scale);
    AT_OUT(int, qsum);
#include "rotation_memory.clh"
#include "gated_rotate.clh"
}
