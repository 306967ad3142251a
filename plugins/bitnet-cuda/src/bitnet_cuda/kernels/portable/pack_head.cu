// Int8 copy of w f16[outs, width]: scale[n] = max|w[n]| / 127, codes[n,k] = round(w[n,k] / scale[n]), error[n] >= |w[n]
// - scale[n] codes[n]| + 3 (width + 64) 2^-24 |w[n]|. A row with a NaN or Inf gets scale NaN and codes 0.
// One warp per row, TILE_N = GROUP / 32 rows per block.
#include "prelude.cuh"

KERNEL pack_head(const u16* w, signed char* codes, float* scale, float* error, u32 outs, u32 width) {
    let_next_start();
    wait_for_previous();
    u32 n = blockIdx.x * TILE_N + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (n >= outs) return;
    const u16* row = w + (size_t)n * width;
    u32 bits = 0;
    float squares = 0.0f;
    for (u32 k = lane; k < width; k += 32) {
        float v = half_to_float(row[k]);
        bits = max(bits, __float_as_uint(v) & 0x7fffffffu);
        squares += v * v;
    }
    bits = warp_max_bits(bits);
    squares = warp_sum(squares);
    bool bad = bits >= 0x7f800000u;
    float step = __uint_as_float(bits) / 127.0f, inverse = bits == 0 ? 0.0f : 1.0f / step, apart = 0.0f;
    for (u32 k = lane; k < width; k += 32) {
        float v = half_to_float(row[k]);
        int code = bad ? 0 : (int)fminf(fmaxf(rintf(v * inverse), -127.0f), 127.0f);
        codes[(size_t)n * width + k] = (signed char)code;
        float rest = v - (float)code * step;
        apart += rest * rest;
    }
    apart = warp_sum(apart);
    if (lane != 0) return;
    scale[n] = bad ? quiet_nan() : step;
    // 1.01 amply covers the rounding of these sums
    error[n] = bad ? 0.0f : 1.01f * (sqrtf(apart) + 3.0f * (float)(width + 64) * 0x1p-24f * sqrtf(squares));
}
