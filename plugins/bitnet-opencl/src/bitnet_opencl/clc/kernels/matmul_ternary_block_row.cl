// matmul_ternary_block of one row with activation scales (ABLOCK is not 0), formula as in matmul_ternary_block.cl. WIDTH
// is the number of columns. Each lane needs other columns of q, which would read a cache line each, so the group copies
// q to local memory: word i of block b is x[i][b], at an odd distance so that a copied block goes to several banks.
// LANES work-items share a matrix row, a 128-block each at a time; DEPTH blocks are loaded at once.
// Group: TILE_N matrix rows.
#define BLOCKS (WIDTH / 128)
#define SETS (GROUP / LANES)
#define ROWS_PER_SET (TILE_N / SETS)
#define EACH_ROW \
    UNROLL       \
    for (uint r = 0; r < ROWS_PER_SET; ++r)
#define EACH_BLOCK \
    UNROLL         \
    for (uint d = 0; d < DEPTH; ++d)
#define BLOCK_OF(d) (first + (d)*LANES + lane)
// Loads the codes and scales of DEPTH blocks; blocks past the end have the scale 0.
#define LOAD                                                                                                          \
    EACH_BLOCK EACH_ROW {                                                                                             \
        const uint b = min(BLOCK_OF(d), BLOCKS - 1u);                                                                 \
        const ulong n = min(n0 + r, outs - 1);                                                                        \
        word[d][r][0] = load_once(w + (n * BLOCKS + b) * 2);                                                          \
        word[d][r][1] = load_once(w + (n * BLOCKS + b) * 2 + 1);                                                      \
        __global const float *factors = wscale + n * CEIL_DIV(WIDTH, BLOCK) + 128 * b / BLOCK;                        \
        factor[d][r] = BLOCK_OF(d) < BLOCKS ? (float2)(factors[0], factors[BLOCK == 64]) : (float2)0.0f;              \
    }

KERNEL matmul_ternary_block_row(ARGUMENTS) {
    PARAMETERS
    AT_IN(uint4, w);
    AT_IN(float, wscale);
    AT_IN(uint4, q);
    AT_IN(float4, scale);
    AT_IN(int4, qsum);
    AT_OUT(float, y);
    __local uint4 x[8][BLOCKS + 1];
    __local float scratch[GROUP];
    const uint lid = get_local_id(0), lane = lid % LANES, n0 = get_group_id(0) * TILE_N + lid / LANES * ROWS_PER_SET;
    const uint own = n0 + lane;  // the matrix row that this lane writes
    const bool writes = lane < ROWS_PER_SET && own < outs;
    uint4 word[DEPTH][ROWS_PER_SET][2];
    float2 factor[DEPTH][ROWS_PER_SET];  // of columns 0..63 and 64..127 of a block
    float sums[ROWS_PER_SET];
    uint first = 0;
    LOAD
    const float before = ADD && writes ? y[y_first + own] : 0.0f;
    EACH_ROW sums[r] = 0;
    for (uint i = lid; i < 8 * BLOCKS; i += GROUP) x[i % 8][i / 8] = q[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (;;) {
        EACH_BLOCK {
            const uint b = min(BLOCK_OF(d), BLOCKS - 1u);
            const float4 scales = scale[b];
            const int4 minus = qsum[b];
            UNROLL
            for (uint plane = 0; plane < 4; ++plane) {
                const uint4 x0 = x[2 * plane][b], x1 = x[2 * plane + 1][b];
                const float unit = ((const float *)&scales)[plane] * (1.0f / (1 << IN_PLACE_SHIFT(plane)));
                EACH_ROW {
                    const uint4 c0 = IN_PLACE(word[d][r][0], plane), c1 = IN_PLACE(word[d][r][1], plane);
                    int sum = -((const int *)&minus)[plane] * (1 << IN_PLACE_SHIFT(plane));
                    sum = dot4(c0.x, x0.x, dot4(c0.y, x0.y, dot4(c0.z, x0.z, dot4(c0.w, x0.w, sum))));
                    sum = dot4(c1.x, x1.x, dot4(c1.y, x1.y, dot4(c1.z, x1.z, dot4(c1.w, x1.w, sum))));
                    sums[r] = fma((float)sum * unit, plane < 2 ? factor[d][r].x : factor[d][r].y, sums[r]);
                }
            }
        }
        first += DEPTH * LANES;
        if (first >= BLOCKS) break;
        LOAD
    }
    lanes_sums(sums, ROWS_PER_SET, scratch, LANES);
    float sum = sums[0];
    EACH_ROW if (lane == r) sum = sums[r];
    if (writes) y[y_first + own] = before + sum;
}
