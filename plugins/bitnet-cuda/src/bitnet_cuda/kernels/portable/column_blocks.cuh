// The operands of a tile of TILE_N weight rows and TILE_T rows of activations, 128 columns at a time: one column block
// lies in shared memory while the next is loaded into registers.
#define PITCH 9  // 16-byte words between rows of activations: one more than 128 columns, against bank conflicts
#define CODE_LOADS ((TILE_N * 2 + GROUP - 1) / GROUP)
#define TOKEN_LOADS ((TILE_T * 8 + GROUP - 1) / GROUP)

struct ColumnBlocks {
    const Words *w, *q;
    u32 n_first, outs, t_first, rows, blocks;
    Words next_codes[CODE_LOADS], next_tokens[TOKEN_LOADS];

    __device__ void load(u32 block) {  // threads without a word of their own load the last word again
#pragma unroll
        for (int j = 0; j < CODE_LOADS; j++) {
            u32 i = min(j * GROUP + threadIdx.x, TILE_N * 2u - 1), n = min(n_first + i / 2, outs - 1);
            next_codes[j] = load_streaming(w + ((size_t)n * blocks + block) * 2 + i % 2);
        }
#pragma unroll
        for (int j = 0; j < TOKEN_LOADS; j++) {
            u32 i = min(j * GROUP + threadIdx.x, TILE_T * 8u - 1), token = min(t_first + i / 8, rows - 1);
            const Words& from = q[((size_t)token * blocks + block) * 8 + i % 8];
            next_tokens[j] = {from.x, from.y, from.z, from.w};  // by field, since clang keeps whole structs in memory
        }
    }
    // codes: in shared memory, [TILE_N * 2]; tokens: in shared memory, [TILE_T * PITCH].
    __device__ void store(Words* codes, Words* tokens) const {
#pragma unroll
        for (int j = 0; j < CODE_LOADS; j++) {
            u32 i = j * GROUP + threadIdx.x;
            if (i < TILE_N * 2) codes[i] = next_codes[j];
        }
#pragma unroll
        for (int j = 0; j < TOKEN_LOADS; j++) {
            u32 i = j * GROUP + threadIdx.x;
            if (i < TILE_T * 8) tokens[i / 8 * PITCH + i % 8] = next_tokens[j];
        }
    }
};
