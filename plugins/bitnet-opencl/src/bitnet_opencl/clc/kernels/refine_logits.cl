// Replaces approximate logits[l, n] that may be among the k largest by sum_k x[l, k] * w[n, k]: those with approx +
// error[n] |x[l]| not below the k-th largest of bound[l], all if that is NaN or if there are fewer than k bounds. x
// f32[rows, width]; w f16[outs, width]; error f32[outs]; bound f32[rows, ceil(outs / HEAD_GROUP)]; logits f32[rows,
// stride].
// LANES work-items share a matrix row. Group: TILE_N matrix rows, one row of x.
#define SETS (GROUP / LANES)
#define LONGER 1.00001f  // exceeds the error of the f32 sum
#include "dense.clh"

// Returns an unsigned number with the order of the float.
INLINE uint order_of(float v) {
    const uint bits = as_uint(v);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

KERNEL refine_logits(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, x);
    AT_IN(uchar, w);
    AT_IN(float, error);
    AT_IN(float, bound);
    AT_OUT(float, logits);
    __local float scratch[GROUP];
    __local int scratch_int[GROUP];
    __local uint counts[256], open[TILE_N], chosen, left, opened;
    const uint lid = get_local_id(0), lane = lid % LANES, l = get_group_id(1), first = get_group_id(0) * TILE_N;
    const uint groups = CEIL_DIV(outs, HEAD_GROUP);
    __global const float *bounds = bound + (ulong)l * groups, *row = x + (ulong)l * width;
    __global float *to = logits + (ulong)l * stride;
    float squares = 0;
    int bad = 0;
    for (uint i = lid; i < width; i += GROUP) squares = fma(row[i], row[i], squares);
    float best = -INFINITY;
    for (uint i = lid; i < groups; i += GROUP) {
        bad |= isnan(bounds[i]);
        best = fmax(best, bounds[i]);
    }
    const float length = sqrt(group_sum(squares, scratch)) * LONGER;
    const bool all = group_sum_int(bad, scratch_int) != 0 || groups < k;
    best = group_max(best, scratch);
    // the k-th largest bound: if it is not the largest, found 8 bits at a time
    uint threshold = k == 1 ? order_of(best) : 0, wanted = k;
    for (uint shift = 32; !all && k > 1 && shift > 0;) {
        shift -= 8;
        for (uint i = lid; i < 256; i += GROUP) counts[i] = 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = lid; i < groups; i += GROUP) {
            const uint key = order_of(bounds[i]);
            if (shift == 24 || key >> (shift + 8) == threshold) atomic_inc(&counts[key >> shift & 255]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lid == 0) {
            uint bin = 255, above = 0;
            while (above + counts[bin] < wanted) above += counts[bin--];
            chosen = bin;
            left = wanted - above;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        threshold = threshold << 8 | chosen;
        wanted = left;
    }
    if (lid == 0) opened = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = lid; i < TILE_N && first + i < outs; i += GROUP) {
        const float most = to[first + i] + error[first + i] * length;
        if (all || isnan(most) || order_of(most) >= threshold) open[atomic_inc(&opened)] = first + i;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint at = 0; at < opened; at += SETS) {  // all do the same number of rounds, for the sums over lanes
        const uint n = open[min(at + lid / LANES, opened - 1)];
        __global const uchar *weights = w + (ulong)n * width * 2;
        float8 wide = 0;
        for (uint u = lane; u < width / 8; u += LANES) wide = fma(table_values8(weights, 8 * u), vload8(u, row), wide);
        const float4 half_sum = wide.lo + wide.hi;
        float sum = half_sum.x + half_sum.y + half_sum.z + half_sum.w;
        for (uint i = width / 8 * 8 + lane; i < width; i += LANES) sum = fma(table_value(weights, i), row[i], sum);
        sum = lanes_sum(sum, scratch, LANES);
        if (lane == 0 && at + lid / LANES < opened) to[n] = sum;
    }
}
