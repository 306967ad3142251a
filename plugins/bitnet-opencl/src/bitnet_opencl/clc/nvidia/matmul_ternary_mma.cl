// matmul_ternary for many rows on NVIDIA's tensor cores (compute capability 8.0 and later): mma.sync m16n8k32 u8.s8,
// exact integers. TILE_N matrix rows x TILE_T rows of q per group, 32 matrix rows x SPAN_T rows of q per warp. Lane (g,
// t) holds words 2t and 2t + 1 of the 128-blocks of rows g, g + 8, ...: plane s of them is its part of the A fragment
// for columns 32s .. 32s + 31, in an order of columns that q's fragments share. q passes through local memory, a
// 128-block at a time, while the next one is loaded. Formula and shapes as in matmul_ternary.cl.
#define WARPS_N (TILE_N / 32)
#define WARPS_T (GROUP / 32 / WARPS_N)
#define SPAN_T (TILE_T / WARPS_T)
#define TILES (SPAN_T / 8)
#define PITCH 10  // uint4 per 128 columns of q in local memory: two more than needed, against bank conflicts
#define STAGED (TILE_T * 8 / GROUP)

#include "tensor.clh"

KERNEL matmul_ternary_mma(ARGUMENTS) {
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
    int acc[2][TILES][4];
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
            for (uint j = 0; j < 4; ++j) acc[m][i][j] = 0;
    for (uint b = 0; b <= blocks; ++b) {  // loads block b, computes block b - 1
        if (b < blocks) {
            UNROLL
            for (uint i = 0; i < 4; ++i) next[i] = weights[i][4 * b];
            UNROLL
            for (uint i = 0; i < STAGED; ++i) staged[i] = columns[i][8 * b];
        }
        if (b > 0) {
            __local const uint2 *from = (__local const uint2 *)tile[(b - 1) & 1] + (span + g) * 2 * PITCH + t;
            UNROLL
            for (uint s = 0; s < 4; ++s) {
                uint a[2][4];
                UNROLL
                for (uint m = 0; m < 2; ++m) {
                    a[m][0] = PLANE(packed[2 * m].x, s);
                    a[m][1] = PLANE(packed[2 * m + 1].x, s);
                    a[m][2] = PLANE(packed[2 * m].y, s);
                    a[m][3] = PLANE(packed[2 * m + 1].y, s);
                }
                UNROLL
                for (uint i = 0; i < TILES; ++i) {
                    const uint2 x = from[8 * i * 2 * PITCH + 4 * s];
                    mma(acc[0][i], a[0], x);
                    mma(acc[1][i], a[1], x);
                }
            }
        }
        if (b < blocks) {
            UNROLL
            for (uint i = 0; i < 4; ++i) packed[i] = next[i];
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
                const float value = (float)(acc[r / 2][i][r % 2 * 2 + j] - qsum[row]) * scale[row] * wscale[n];
                __global float *to = y + (ulong)row * y_stride + y_first + n;
#if ADD
                *to += value;
#else
                *to = value;
#endif
            }
        }
}
