// Scales of a tile with block scales: a stage of ternary_tile.cuh also holds, from its 16-byte word FACTORS on, the
// activation scales, those of all tokens for each plane. Weight scales are loaded a column block ahead.
#define HALVES (BLOCK == 64 ? 2 : 1)  // weight scales of a row for 128 columns

struct alignas(8) Factors {
    float even, odd;  // of two neighbouring tokens
};

struct Scaled {
    Tile tile;
    const float *wscale, *scale;
    u32 n_first;  // the warp's first row plus this lane's g

    // Loads the tile's next column block, with its activation scales.
    __device__ void load_factors(Words* stage, u32 block) const {
#pragma unroll
        for (u32 i = threadIdx.x; ABLOCK && i < TILE_T * 4; i += GROUP)
            copy_async_word((float*)(stage + FACTORS) + i % 4 * TILE_T + i / 4,
                            scale + ((size_t)min(tile.t_first + i / 4, tile.rows - 1) * tile.blocks + block) * 4 + i % 4);
    }
    __device__ void load_weights(float (*to)[2][HALVES], u32 block) const {
        u32 scales = (tile.blocks * 128 + BLOCK - 1) / BLOCK;
#pragma unroll
        for (int i = 0; i < M_TILES * 2 * HALVES; i++) {
            u32 n = min(n_first + 16 * (i / (2 * HALVES)) + 8 * (i / HALVES % 2), tile.outs - 1);
            to[i / (2 * HALVES)][i / HALVES % 2][i % HALVES] =
                wscale[(size_t)n * scales + (block * 128 + i % HALVES * 64) / BLOCK];
        }
    }
};
