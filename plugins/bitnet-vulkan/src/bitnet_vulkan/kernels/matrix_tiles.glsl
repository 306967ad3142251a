// Common parts of the ternary products on matrix units: a workgroup's tile of TILE_T tokens x TILE_N outputs, its
// subgroups' parts of WAVE_T tokens, and 128 columns of both operands, loaded through registers into shared memory.
const uint WAVES_T = TILE_T / WAVE_T, WAVE_N = TILE_N * WAVES_T / (GROUP / WAVE);
const uint FRAGMENTS_T = WAVE_T / 16, FRAGMENTS_N = WAVE_N / 16;
const uint STRIDE = 9;  // uvec4 of a row of 128 bytes, plus one to spread rows over banks
const uint W_LOADS = (TILE_N * 2 + GROUP - 1) / GROUP, Q_LOADS = TILE_T * 8 / GROUP;

#define LEFT coopmat<int8_t, gl_ScopeSubgroup, 16, 32, gl_MatrixUseA>
#define RIGHT coopmat<int8_t, gl_ScopeSubgroup, 32, 16, gl_MatrixUseB>
#define SUM coopmat<int, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

// Tiles of the same outputs run at about the same time, so that their weights are read from memory once.
#define TILE_INDEX (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x)
#define TILE_FIRST_N (TILE_INDEX / gl_NumWorkGroups.y * TILE_N)
#define TILE_FIRST_T (TILE_INDEX % gl_NumWorkGroups.y * TILE_T)

// The row of the weights at place AT of a tile: neighbours read 32 bytes of a row, and write to different banks.
#define W_ROW(AT) ((AT) / 16 * 8 + (AT) / 2 % 4 * 2 + (AT) / 8 % 2)

// The addresses of an invocation's operands; past the end those of the last row, whose results are discarded.
#define PLACES(OF_W, OF_Q)                                                                                       \
    [[unroll]] for (uint i = 0; i < W_LOADS; i++)                                                                \
        OF_W[i] = min(n0 + W_ROW(LID + i * GROUP), p.outs - 1) * blocks * 2 + LID % 2;                           \
    [[unroll]] for (uint i = 0; i < Q_LOADS; i++)                                                                \
        OF_Q[i] = min(t0 + (LID + i * GROUP) / 8, p.rows - 1) * blocks * 8 + LID % 8;
#define LOAD(B)                                                                                                  \
    [[unroll]] for (uint i = 0; i < W_LOADS; i++) w_next[i] = w[w_from[i] + 2 * (B)];                            \
    [[unroll]] for (uint i = 0; i < Q_LOADS; i++) q_next[i] = q[q_from[i] + 8 * (B)];
#define STORE_Q                                                                                                  \
    [[unroll]] for (uint i = 0; i < Q_LOADS; i++) q_tile[(LID + i * GROUP) / 8 * STRIDE + LID % 8] = q_next[i];

// Stores the tile's part of y. VALUE(i, j, e): the value that element e of fragment i, j adds or stores. y is read
// before anything is written. Two neighbours are written at a time, as y2, if all pairs have even positions.
#define EACH_PAIR                                                                                                \
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)                                                            \
        [[unroll]] for (uint g = 0; g < 2; g++)                                                                  \
            [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++)                                                    \
                [[unroll]] for (uint k = 0; k < 2; k++)
#define PUT(VALUE)                                                                                               \
    vec2 values[FRAGMENTS_T][2][FRAGMENTS_N][2];                                                                 \
    EACH_PAIR {                                                                                                  \
        uint row = min(t0 + wave_t + 16 * i + ROW(4 * g), p.rows - 1) * p.y_stride + p.y_first;                  \
        uint n = n0 + wave_n + 16 * j + COLUMN(2 * k);                                                           \
        vec2 value = vec2(VALUE(i, j, 4 * g + 2 * k), VALUE(i, j, 4 * g + 2 * k + 1));                           \
        if (ADD == 1) value = value + vec2(y[row + min(n, p.outs - 1)], y[row + min(n + 1, p.outs - 1)]);        \
        values[i][g][j][k] = value;                                                                              \
    }                                                                                                            \
    bool pairs = (p.outs | p.y_stride | p.y_first) % 2 == 0;                                                     \
    EACH_PAIR {                                                                                                  \
        uint t = t0 + wave_t + 16 * i + ROW(4 * g), n = n0 + wave_n + 16 * j + COLUMN(2 * k);                    \
        uint at = t * p.y_stride + p.y_first + n;                                                                \
        if (t >= p.rows || n >= p.outs) continue;                                                                \
        if (pairs) {                                                                                             \
            y2[at / 2] = values[i][g][j][k];                                                                     \
        } else {                                                                                                 \
            y[at] = values[i][g][j][k][0];                                                                       \
            if (n + 1 < p.outs) y[at + 1] = values[i][g][j][k][1];                                               \
        }                                                                                                        \
    }
