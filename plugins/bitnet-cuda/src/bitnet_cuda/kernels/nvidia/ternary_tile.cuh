// A tile of ternary products on tensor cores: TILE_N weight rows x TILE_T tokens. 2-bit weights and activations of
// STAGES column blocks of 128 are in flight from global to shared memory. A stage holds one column block: weights from
// its 16-byte word WEIGHTS on, activations from TOKENS on, both swizzled by row against bank conflicts, and EXTRA words
// of the kernel.
#ifndef EXTRA
#define EXTRA 0
#endif
#define STAGE (TILE_N * 2 + TILE_T * 8 + EXTRA)  // 16-byte words

struct Tile {
    const Words *w, *q;
    u32 n_first, outs, t_first, rows, blocks;

    __device__ void load_weights(Words* stage, u32 block) const {
#pragma unroll
        for (u32 i = threadIdx.x; i < TILE_N * 2; i += GROUP) {
            u32 row = i / 2, half = i % 2;
            copy_async_ahead(stage + WEIGHTS + row * 2 + (half ^ (row / 4 % 2)),
                             w + ((size_t)min(n_first + row, outs - 1) * blocks + block) * 2 + half);
        }
    }
    __device__ void load_tokens(Words* stage, u32 block) const {
#pragma unroll
        for (u32 i = threadIdx.x; i < TILE_T * 8; i += GROUP) {
            u32 token = i / 8, chunk = i % 8;
            copy_async(stage + TOKENS + token * 8 + (chunk ^ token % 8),
                       q + ((size_t)min(t_first + token, rows - 1) * blocks + block) * 8 + chunk);
        }
    }
    __device__ void load(Words* stage, u32 block) const {
        load_weights(stage, block);
        load_tokens(stage, block);
    }
    // Starts the copies of the first STAGES - 1 column blocks, one group each; the weights before the preceding launch
    // has finished. also(stage, block): further copies with the activations.
    template <class Also>
    __device__ void start(Words* stages, Also also) const {
        let_next_start();
        for (u32 b = 0; b < min((u32)STAGES - 1, blocks); b++) load_weights(stages + b * STAGE, b);
        wait_for_previous();
        for (u32 b = 0; b < STAGES - 1; b++) {
            if (b < blocks) {
                load_tokens(stages + b * STAGE, b);
                also(stages + b * STAGE, b);
            }
            copy_group();
        }
    }
    __device__ void start(Words* stages) const {
        start(stages, [](Words*, u32) {});
    }
};
