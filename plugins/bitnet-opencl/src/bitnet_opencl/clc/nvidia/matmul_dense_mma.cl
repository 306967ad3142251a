// matmul_dense of a batch's rows on tensor cores; f16 tables with a multiple of 64 columns. Rows of x are scaled by a
// power of two so that the largest value lies in [1, 2), and split into two f16 (22 bits), which are multiplied in
// sequence. Tensor cores sum products of 64 columns; these sums are added in f32 in the order of columns.
// Local memory has CHUNK columns of x, and the next ones are loaded meanwhile; a warp has 16 TILES matrix rows and loads
// their next columns while it multiplies. Lane (g, t) has columns 8t .. 8t + 7 of each 32 in matrix rows g, g + 8, ...
// and in row g of each eight of x. Group: TILE_N matrix rows, TILE_T rows of x. Formula and shapes as in matmul_dense.cl.
#define WARPS (GROUP / 32)
#define TILES (TILE_N / (16 * WARPS))
#define EIGHTS (TILE_T / 8)
#define PITCH (CHUNK / 8 + 4)  // uint4 of a row of f16 in local memory, plus four against bank conflicts

#include "tensor.clh"

#define OCTETS (TILE_T * CHUNK / 8 / GROUP)  // of x in a chunk, for each work-item
#define OWN_ROWS CEIL_DIV(TILE_T, WARPS)
#define LOADS (16 / OWN_ROWS)  // in flight for the maximum of a row

// Puts biased exponents of the factors of rows into local memory.
INLINE void find_exponents(__local uint *exponents, __global const float *x, uint t0, uint rows, uint width,
                           __local float *scratch) {
    const uint lane = get_local_id(0) % 32, warp = get_local_id(0) / 32;
    float4 largest[OWN_ROWS];
    UNROLL
    for (uint r = 0; r < OWN_ROWS; ++r) largest[r] = 0;
    for (uint first = 4 * lane; first < CEIL_DIV(width, 128) * 128; first += 128 * LOADS)
        UNROLL
        for (uint i = 0; i < LOADS * OWN_ROWS; ++i) {
            const uint r = i / LOADS, k = first + 128 * (i % LOADS);
            __global const float *row = x + (ulong)min(t0 + warp + r * WARPS, rows - 1) * width;
            if (k < width) largest[r] = fmax(largest[r], fabs(*(__global const float4 *)(row + k)));
        }
    UNROLL
    for (uint r = 0; r < OWN_ROWS; ++r) {
        const float2 half_most = fmax(largest[r].lo, largest[r].hi);
        const uint exponent = as_uint(lanes_max(fmax(half_most.x, half_most.y), scratch, 32)) >> 23;
        if (lane == 0 && warp + r * WARPS < TILE_T)
            exponents[warp + r * WARPS] = exponent == 255 ? 127 : max(254 - max(exponent, 1u), 1u);
    }
}

// Loads the work-item's octets of a chunk of x.
INLINE void load_chunk(float8 *octets, __global const float *x, uint t0, uint rows, uint width, uint chunk) {
    UNROLL
    for (uint k = 0; k < OCTETS; ++k) {
        const uint e = get_local_id(0) + k * GROUP, row = e / (CHUNK / 8);
        const uint column = min(chunk + e % (CHUNK / 8) * 8, width - 8);
        __global const float4 *from = (__global const float4 *)(x + (ulong)min(t0 + row, rows - 1) * width + column);
        octets[k] = (float8)(from[0], from[1]);
    }
}

// Splits them into local memory.
INLINE void store_chunk(__local uint4 *high, __local uint4 *low, const float8 *octets, __local const uint *exponents) {
    UNROLL
    for (uint k = 0; k < OCTETS; ++k) {
        const uint e = get_local_id(0) + k * GROUP, row = e / (CHUNK / 8), octet = e % (CHUNK / 8);
        const float8 v = octets[k] * as_float(exponents[row] << 23);
        uint h[4], l[4];
        split_halves(v.s0, v.s1, h, l);
        split_halves(v.s2, v.s3, h + 1, l + 1);
        split_halves(v.s4, v.s5, h + 2, l + 2);
        split_halves(v.s6, v.s7, h + 3, l + 3);
        high[row * PITCH + octet] = (uint4)(h[0], h[1], h[2], h[3]);
        low[row * PITCH + octet] = (uint4)(l[0], l[1], l[2], l[3]);
    }
}

// 16 bytes of 2 TILES matrix rows, in each half of 64 columns.
INLINE void load_table(uint4 (*words)[2], __global const uint4 *const *table, uint column) {
    UNROLL
    for (uint r = 0; r < 2 * TILES; ++r)
        UNROLL
        for (uint h = 0; h < 2; ++h) words[r][h] = load_once(table[r] + column / 8 + 4 * h);
}

KERNEL matmul_dense_mma(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, x);
    AT_IN(uint4, w);
    AT_OUT(float, y);
    __local uint4 halves[4 * TILE_T * PITCH];  // two chunks of upper parts, then of lower parts
    __local float scratch[GROUP];
    __local uint exponents[TILE_T];  // biased, of the factor of each row of x
    const uint lid = get_local_id(0), lane = lid % 32, g = lane / 4, t = lane % 4, warp = lid / 32;
    const uint n0 = get_group_id(0) * TILE_N + warp * 16 * TILES, t0 = get_group_id(1) * TILE_T;
    __global const uint4 *table[2 * TILES];
    float acc[TILES][EIGHTS][4];
    uint4 words[2 * TILES][2], next[2 * TILES][2];
    UNROLL
    for (uint r = 0; r < 2 * TILES; ++r) table[r] = w + (ulong)min(n0 + 8 * r + g, outs - 1) * (width / 8) + t;
    UNROLL
    for (uint i = 0; i < TILES * EIGHTS * 4; ++i) acc[i / (4 * EIGHTS)][i / 4 % EIGHTS][i % 4] = 0;
    load_table(next, table, 0);
    float8 octets[OCTETS];
    load_chunk(octets, x, t0, rows, width, 0);
    find_exponents(exponents, x, t0, rows, width, scratch);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint chunk = 0; chunk < width; chunk += CHUNK) {
        const uint columns = min((uint)CHUNK, width - chunk);
        __local uint4 *high = halves + chunk / CHUNK % 2 * TILE_T * PITCH, *low = high + 2 * TILE_T * PITCH;
        store_chunk(high, low, octets, exponents);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (chunk + CHUNK < width) load_chunk(octets, x, t0, rows, width, chunk + CHUNK);
        for (uint c = 0; c < columns; c += 64) {
            UNROLL
            for (uint r = 0; r < 4 * TILES; ++r) words[r / 2][r % 2] = next[r / 2][r % 2];
            load_table(next, table, min(chunk + c + 64, width - 64));
            float part[TILES][EIGHTS][4];
            UNROLL
            for (uint i = 0; i < TILES * EIGHTS * 4; ++i) part[i / (4 * EIGHTS)][i / 4 % EIGHTS][i % 4] = 0;
            UNROLL
            for (uint h = 0; h < 2; ++h)
                UNROLL
                for (uint i = 0; i < EIGHTS; ++i) {
                    const uint at = (8 * i + g) * PITCH + c / 8 + 4 * h + t;
                    const uint4 coarse = high[at], fine = low[at];
                    UNROLL
                    for (uint m = 0; m < TILES; ++m) {
                        const uint4 upper = words[2 * m][h], lower = words[2 * m + 1][h];
                        const uint first[4] = {upper.x, lower.x, upper.y, lower.y};
                        const uint second[4] = {upper.z, lower.z, upper.w, lower.w};
                        mma_half(part[m][i], first, fine.x, fine.y);
                        mma_half(part[m][i], second, fine.z, fine.w);
                        mma_half(part[m][i], first, coarse.x, coarse.y);
                        mma_half(part[m][i], second, coarse.z, coarse.w);
                    }
                }
            UNROLL
            for (uint i = 0; i < TILES * EIGHTS * 4; ++i)
                acc[i / (4 * EIGHTS)][i / 4 % EIGHTS][i % 4] += part[i / (4 * EIGHTS)][i / 4 % EIGHTS][i % 4];
        }
    }
    UNROLL
    for (uint i = 0; i < EIGHTS * 2; ++i) {
        const uint row = 8 * (i / 2) + 2 * t + i % 2;
        if (t0 + row >= rows) continue;
        const float inverse = as_float((254 - exponents[row]) << 23);
        UNROLL
        for (uint r = 0; r < 2 * TILES; ++r)
            if (n0 + 8 * r + g < outs)
                y[(ulong)(t0 + row) * y_stride + y_first + n0 + 8 * r + g] = acc[r / 2][i / 2][r % 2 * 2 + i % 2] * inverse;
    }
}
