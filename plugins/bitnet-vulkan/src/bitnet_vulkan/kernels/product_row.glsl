// A product of one row with block scales: y[y_first + n] (+)= sum_a wscale[n, 32 a / BLOCK] * scale[a] * (sum over the 32
// columns of a of (code[n, k] - 1) * q[k]). WIDTH is the number of columns. Each lane needs other columns of q, which would
// read a cache line each, so the workgroup copies q to shared memory: word i of block b is x[i * PITCH + b], at an odd
// distance so that a copied block goes to several banks. LANES invocations share a matrix row, a block of 128 columns each
// at a time. One workgroup per TILE_N matrix rows. The body of main() is in
// product_row_load.glsl, then product_row_multiply.glsl. Requires w, wscale, q4, scale4, qsum4 and y.
#include "dot.glsl"

const uint BLOCKS = WIDTH / 128, PITCH = BLOCKS + 1, ROWS_PER = TILE_N * LANES / GROUP;
const uint SPAN = BLOCK == 0 ? 128 : BLOCK, SCALES = (WIDTH + SPAN - 1) / SPAN;
shared uvec4 x[8 * PITCH];
shared vec4 scales_of[BLOCKS];
shared ivec4 sums_of[BLOCKS];

// Loads block `first`; past the last block, the scale is 0.
#define LOAD                                                                   \
    [[unroll]] for (uint r = 0; r < ROWS_PER; r++) {                           \
        uint b = min(first, BLOCKS - 1), n = min(n0 + r, p.outs - 1);          \
        uint at = n * SCALES + 128 * b / SPAN;                                 \
        words[r][0] = w[(n * BLOCKS + b) * 2];                                 \
        words[r][1] = w[(n * BLOCKS + b) * 2 + 1];                             \
        vec2 found = vec2(wscale[at], wscale[at + uint(BLOCK == 64)]);         \
        units[r] = first < BLOCKS ? found : vec2(0.0);                         \
    }
