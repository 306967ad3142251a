// Common parts of the ternary products of a batch's rows on matrix units. A workgroup computes TILE_T tokens x TILE_N
// outputs. Its subgroups share the columns: each takes every WAVES_K-th block of 128 and unpacks it into its own area
// of shared memory while the next one is loaded into registers. At the end it stores its sums there, which are added in
// the order of subgroups.
const uint WAVES_K = GROUP / WAVE, FRAGMENTS_T = TILE_T / 16, FRAGMENTS_N = TILE_N / 16;
const uint STRIDE = 9;  // uvec4 of a row of 128 bytes, plus one to spread rows over banks
const uint Q_AREA = TILE_N * STRIDE, AREA = Q_AREA + TILE_T * STRIDE;
const uint W_LOADS = TILE_N * 2 / WAVE, Q_LOADS = TILE_T * 8 / WAVE;
shared uvec4 pool[WAVES_K * AREA];  // of each subgroup: weights, then activations; at the end its sums

#define LEFT coopmat<int8_t, gl_ScopeSubgroup, 16, 32, gl_MatrixUseA>
#define RIGHT coopmat<int8_t, gl_ScopeSubgroup, 32, 16, gl_MatrixUseB>
#define SUM coopmat<int, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

// The places of load I of an invocation: half a block of row W_ROW(I), a part of row Q_ROW(I).
#define W_ROW(I) ((lane + (I) * WAVE) / 2)
#define W_PLACE(I) (W_ROW(I) * STRIDE + lane % 2)
#define Q_ROW(I) ((lane + (I) * WAVE) / 8)
#define PART(I, J, E) ((16 * (I) + ROW(E)) * TILE_N + 16 * (J) + COLUMN(E))

// Loads block B of both operands; past the end that of the last row, whose results are discarded.
#define LOAD(B)                                                                                                  \
    {                                                                                                            \
        uint from = B;                                                                                           \
        [[unroll]] for (uint i = 0; i < W_LOADS; i++)                                                            \
            w_next[i] = w[(min(n0 + W_ROW(i), p.outs - 1) * blocks + min(from, blocks - 1)) * 2 + lane % 2];     \
        [[unroll]] for (uint i = 0; i < Q_LOADS; i++)                                                            \
            q_next[i] = q[(min(t0 + Q_ROW(i), p.rows - 1) * blocks + min(from, blocks - 1)) * 8 + lane % 8];     \
    }
#define STORE_Q                                                                                                  \
    [[unroll]] for (uint i = 0; i < Q_LOADS; i++) pool[area + Q_AREA + Q_ROW(i) * STRIDE + lane % 8] = q_next[i];
