// matmul_ternary_block for many rows on NVIDIA's tensor cores, as matmul_ternary_mma.cl, with codes as -1, 0, 1. A
// product of 32 columns is exact; activation scales follow their codes in local memory. Formula and shapes as in
// matmul_ternary_block.cl.
#define WARPS_N (TILE_N / 32)
#define WARPS_T (GROUP / 32 / WARPS_N)
#define SPAN_T (TILE_T / WARPS_T)
#define TILES (SPAN_T / 8)
#define PITCH 10  // uint4 per 128 columns of q in local memory: codes, their scales, and one against bank conflicts
#define STAGED (TILE_T * 8 / GROUP)

#include "tensor.clh"

KERNEL matmul_ternary_block_mma(ARGUMENTS) {
    PARAMETERS
    AT_IN(uint2, w);
    AT_IN(float, wscale);
    AT_IN(uint4, q);
    AT_IN(float, scale);
    AT_IN(int, qsum);
    AT_OUT(float, y);
    __local uint4 tile[2][TILE_T * PITCH];
    const uint lid = get_local_id(0), lane = lid % 32, g = lane / 4, t = lane % 4, warp = lid / 32;
    const uint n0 = get_group_id(0) * TILE_N + warp % WARPS_N * 32, t0 = get_group_id(1) * TILE_T;
    const uint span = warp / WARPS_N * SPAN_T, blocks = width / 128;
    __global const uint2 *weights[4];
    __global const uint4 *columns[STAGED];
    uint2 packed[4], next[4];
    uint4 staged[STAGED];
    float sums[2][TILES][4];
    float factor[4][2], next_factor[4][2];  // of columns 0..63 and 64..127 of the block
    float4 own = 1.0f;
    UNROLL
    for (uint i = 0; i < 4; ++i) weights[i] = w + (ulong)min(n0 + 8 * i + g, outs - 1) * blocks * 4 + t;
    UNROLL
    for (uint i = 0; i < STAGED; ++i) {
        const uint at = lid + i * GROUP;
        columns[i] = q + (ulong)min(t0 + at / 8, rows - 1) * blocks * 8 + at % 8;
    }
    UNROLL
    for (uint m = 0; m < 2; ++m)
        UNROLL
        for (uint i = 0; i < TILES; ++i)
            UNROLL
            for (uint j = 0; j < 4; ++j) sums[m][i][j] = 0;
    for (uint b = 0; b <= blocks; ++b) {  // loads block b, computes block b - 1
        if (b < blocks) {
            UNROLL
            for (uint i = 0; i < 4; ++i) {
                next[i] = weights[i][4 * b];
                __global const float *factors =
                    wscale + (ulong)min(n0 + 8 * i + g, outs - 1) * CEIL_DIV(width, BLOCK) + 128 * b / BLOCK;
                next_factor[i][0] = factors[0];
                next_factor[i][1] = factors[BLOCK == 64];
            }
            if (ABLOCK && lid < TILE_T) own = ((__global const float4 *)scale)[(ulong)min(t0 + lid, rows - 1) * blocks + b];
            UNROLL
            for (uint i = 0; i < STAGED; ++i) staged[i] = columns[i][8 * b];
        }
        if (b > 0) {
            __local const uint2 *from = (__local const uint2 *)tile[(b - 1) & 1] + (span + g) * 2 * PITCH + t;
            __local const float *scales = (__local const float *)tile[(b - 1) & 1] + (span + 2 * t) * 4 * PITCH + 32;
            UNROLL
            for (uint s = 0; s < 4; ++s) {
                uint a[2][4];
                UNROLL
                for (uint m = 0; m < 2; ++m) {
                    a[m][0] = SIGNED(PLANE(packed[2 * m].x, s));
                    a[m][1] = SIGNED(PLANE(packed[2 * m + 1].x, s));
                    a[m][2] = SIGNED(PLANE(packed[2 * m].y, s));
                    a[m][3] = SIGNED(PLANE(packed[2 * m + 1].y, s));
                }
                UNROLL
                for (uint i = 0; i < TILES; ++i) {
                    const uint2 x = from[8 * i * 2 * PITCH + 4 * s];
                    const float scale0 = scales[8 * i * 4 * PITCH + s], scale1 = scales[(8 * i + 1) * 4 * PITCH + s];
                    UNROLL
                    for (uint m = 0; m < 2; ++m) {
                        int acc[4] = {0, 0, 0, 0};
                        mma_signed(acc, a[m], x);
                        UNROLL
                        for (uint j = 0; j < 4; ++j)
                            sums[m][i][j] = fma((float)acc[j] * (j % 2 ? scale1 : scale0), factor[2 * m + j / 2][s / 2],
                                                sums[m][i][j]);
                    }
                }
            }
        }
        if (b < blocks) {
            UNROLL
            for (uint i = 0; i < 4; ++i) {
                packed[i] = next[i];
                factor[i][0] = next_factor[i][0];
                factor[i][1] = next_factor[i][1];
            }
            if (lid < TILE_T) tile[b & 1][lid * PITCH + 8] = as_uint4(own);
            UNROLL
            for (uint i = 0; i < STAGED; ++i) {
                const uint at = lid + i * GROUP;
                tile[b & 1][at / 8 * PITCH + at % 8] = staged[i];
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    UNROLL
    for (uint i = 0; i < TILES; ++i)
        UNROLL
        for (uint j = 0; j < 2; ++j) {
            const uint row = t0 + span + 8 * i + 2 * t + j;
            if (row >= rows) continue;
            UNROLL
            for (uint r = 0; r < 4; ++r) {
                const uint n = n0 + 8 * r + g;
                if (n >= outs) continue;
                const float value = ABLOCK ? sums[r / 2][i][r % 2 * 2 + j] : sums[r / 2][i][r % 2 * 2 + j] * scale[row];
                __global float *to = y + (ulong)row * y_stride + y_first + n;
#if ADD
                *to += value;
#else
                *to = value;
#endif
            }
        }
}
