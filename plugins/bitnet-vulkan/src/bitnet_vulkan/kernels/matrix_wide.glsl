// Common parts of the ternary products of a batch's rows on matrix units. A workgroup computes TILE_T tokens x TILE_N
// outputs. Its subgroups share the columns: each takes every WAVES_K-th block of 128. Both operands go from memory to
// registers (matrix_narrow.glsl): invocation 4 g + t has bytes 8 t .. 8 t + 7 of each block of weights, and of each plane
// of activations, four of which it takes in each step of 16 columns.
const uint WAVES_K = GROUP / WAVE, FRAGMENTS_N = TILE_N / 16, FRAGMENTS_T = TILE_T / 8;
const uint AREA = TILE_N * TILE_T;
shared float pool[WAVES_K * AREA];  // the sums of each subgroup

#define LOAD_W(B)                                                                                                \
    [[unroll]] for (uint r = 0; r < 2 * FRAGMENTS_N; r++)                                                        \
        w_next[r] = w[(min(n0 + 8 * r + lane / 4, p.outs - 1) * blocks + (B)) * 4 + lane % 4];
#define LOAD_Q(B)                                                                                                \
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)                                                            \
        [[unroll]] for (uint s = 0; s < 4; s++)                                                                  \
            q_words[i][s] = q[(min(t0 + 8 * i + lane / 4, p.rows - 1) * blocks + (B)) * 16 + 4 * s + lane % 4];

