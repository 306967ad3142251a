// logits[l, n] = scale[n] * sum_k codes[n, k] * x[l, k]; bound[l, g] = max(logits[l, n] - error[n] |x[l]|) over the
// TILE_N rows n of group g, NaN if one of these is not finite. x f32[rows, width]; codes i8[outs, width]; scale, error
// f32[outs]; logits f32[rows, stride]; bound f32[rows, ceil(outs / TILE_N)].
// LANES work-items share a matrix row and take four times WORDS columns of it at a time, for ROWS matrix rows. Group:
// TILE_N matrix rows, TILE_T rows of x.
#define SETS (GROUP / LANES)
#ifndef WORDS
#define WORDS 1
#endif
#if WORDS == 4
typedef uint4 piece;
#define LOAD_PIECE(from) load_once(from)
#else
typedef uint piece;
#define LOAD_PIECE(from) (*(from))
#endif
#define DEPTH (4 / WORDS)  // loads of a row in flight
#define LONGER 1.00001f  // exceeds the error of the f32 sum

KERNEL approx_logits(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, x);
    AT_IN(uint, codes);
    AT_IN(float, scale);
    AT_IN(float, error);
    AT_OUT(float, logits);
    AT_OUT(float, bound);
    __local float best[SETS][TILE_T], lanes[GROUP];
    const uint lid = get_local_id(0), lane = lid % LANES, set = lid / LANES, t0 = get_group_id(1) * TILE_T;
    const uint pieces = width / (4 * WORDS);
    float low[TILE_T];
    UNROLL
    for (uint t = 0; t < TILE_T; ++t) low[t] = -INFINITY;
    for (uint pass = 0; pass < TILE_N; pass += SETS * ROWS) {
        const uint n0 = get_group_id(0) * TILE_N + pass + set * ROWS;
        __global const piece *from[ROWS];
        float sums[ROWS][TILE_T], squares[TILE_T];
        UNROLL
        for (uint t = 0; t < TILE_T; ++t) squares[t] = 0;
        UNROLL
        for (uint r = 0; r < ROWS; ++r) {
            from[r] = (__global const piece *)codes + (ulong)min(n0 + r, outs - 1) * pieces;
            UNROLL
            for (uint t = 0; t < TILE_T; ++t) sums[r][t] = 0;
        }
        for (uint first = lane; first < pieces; first += DEPTH * LANES) {
            piece held[DEPTH][ROWS];
            UNROLL
            for (uint d = 0; d < DEPTH; ++d)
                UNROLL
                for (uint r = 0; r < ROWS; ++r) held[d][r] = LOAD_PIECE(from[r] + min(first + d * LANES, pieces - 1));
            UNROLL
            for (uint d = 0; d < DEPTH; ++d) {
                const uint u = first + d * LANES;
                if (u >= pieces) break;
                UNROLL
                for (uint i = 0; i < TILE_T * WORDS; ++i) {
                    const uint t = i / WORDS, word = i % WORDS;
                    const float4 v = ((__global const float4 *)(x + (ulong)min(t0 + t, rows - 1) * width))[u * WORDS + word];
                    squares[t] = fma(v.x, v.x, fma(v.y, v.y, fma(v.z, v.z, fma(v.w, v.w, squares[t]))));
                    UNROLL
                    for (uint r = 0; r < ROWS; ++r) {
                        const float4 code = signed_floats(((const uint *)&held[d][r])[word]);
                        sums[r][t] = fma(code.x, v.x, fma(code.y, v.y, fma(code.z, v.z, fma(code.w, v.w, sums[r][t]))));
                    }
                }
            }
        }
        UNROLL
        for (uint t = 0; t < TILE_T; ++t) squares[t] = sqrt(lanes_sum(squares[t], lanes, LANES)) * LONGER;
        UNROLL
        for (uint r = 0; r < ROWS; ++r)
            UNROLL
            for (uint t = 0; t < TILE_T; ++t) {
                const float sum = lanes_sum(sums[r][t], lanes, LANES);
                const uint n = n0 + r;
                if (n >= outs) continue;
                const float approx = sum * scale[n], least = approx - error[n] * squares[t];
                low[t] = isfinite(least) && !isnan(low[t]) ? fmax(low[t], least) : NAN;
                if (lane == 0 && t0 + t < rows) logits[(ulong)(t0 + t) * stride + n] = approx;
            }
    }
    UNROLL
    for (uint t = 0; t < TILE_T; ++t)
        if (lane == 0) best[set][t] = low[t];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lid >= TILE_T || t0 + lid >= rows) return;
    float most = -INFINITY;
    for (uint s = 0; s < SETS; ++s) most = isnan(best[s][lid]) || isnan(most) ? NAN : fmax(most, best[s][lid]);
    bound[(ulong)(t0 + lid) * CEIL_DIV(outs, TILE_N) + get_group_id(0)] = most;
}
