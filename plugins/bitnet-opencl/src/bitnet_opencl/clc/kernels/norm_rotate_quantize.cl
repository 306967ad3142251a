// y[t] = x[t] / sqrt(mean(x[t]^2) + eps) * gamma (NORM 1) or x[t] (NORM 0), stored if KEEP is 1; then H(signs * y) for
// each `block` columns, quantized (rotate_quantize.clh). x, y f32[rows, width]; gamma, signs f32[width]; q i8[rows,
// width]; scale f32, qsum i32 [rows, width / 32].
// Group: TILE_N blocks of a row, each at most ROOM columns; every group sums the squares of the whole row.
#include "rotate_quantize.clh"
KERNEL norm_rotate_quantize(ARGUMENTS) {
    PARAMETERS
    AT_IN(float4, x);
    AT_IN(float4, gamma);
    AT_IN(float4, signs);
    AT_OUT(float4, y);
    AT_OUT(char, q);
    AT_OUT(float, scale);
    AT_OUT(int, qsum);
#include "rotation_memory.clh"
#include "norm_rotate.clh"
}
