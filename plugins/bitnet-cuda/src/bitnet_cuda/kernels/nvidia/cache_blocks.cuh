// Blocks of KV_BLOCK cached keys and values of one head in shared memory, as f16 for the products of attention_mma.cu;
// each is copied while the one before is used. f16 caches are used as stored. int8 caches have rows of an f32 scale and
// HEAD_DIM codes: the codes are converted to f16, which is exact, scales of keys multiply scores, and scales of values
// multiply weights. A weight is then up to 1 / 127 of the largest value; multiplied by VALUE_UNITS = 128 it stays as
// far from f16's limits as the value itself.
#define CHUNKS (HEAD_DIM / 8)           // 16-byte words of a row as f16
#define TILE (2 * KV_BLOCK * CHUNKS)   // 16-byte words of one block: keys, then values
#define CODED (KV == 2)
#define VALUE_UNITS (CODED ? 128.0f : 1.0f)
#define ROW_WORDS (1 + HEAD_DIM / 4)        // 4-byte words of a row of an int8 cache
#define CODED_BLOCK (KV_BLOCK * ROW_WORDS / 4)  // 16-byte words of a block of an int8 cache

// Swizzled by row, so that the eight rows of a matrix lie in different banks.
__device__ inline u32 word_of(u32 row, u32 chunk) { return row * CHUNKS + (chunk ^ row % 8); }

#if CODED
struct CacheBlocks {
    // Shared memory: a tile, two blocks of codes of keys and values, and the scales of a block.
    static constexpr u32 WORDS = TILE + 4 * CODED_BLOCK + KV_BLOCK / 2;
    Words* pool;
    const Words *k_cache, *v_cache;

    __device__ Words* codes(u32 b) const { return pool + TILE + b % 2 * (2 * CODED_BLOCK); }
    __device__ float* scales() const { return (float*)(pool + TILE + 4 * CODED_BLOCK); }
    __device__ void ask(u32 b, size_t block, u32) const {
        Words* to = codes(b);
        for (u32 i = threadIdx.x; i < CODED_BLOCK; i += GROUP) {
            copy_async(to + i, k_cache + block * CODED_BLOCK + i);
            copy_async(to + CODED_BLOCK + i, v_cache + block * CODED_BLOCK + i);
        }
    }
    // Returns the tile of block b, which has `count` rows in use. All threads must call this once b has been copied.
    __device__ const Words* unpacked(u32 b, u32 count) const {
        const u32* from = (const u32*)codes(b);
        for (u32 i = threadIdx.x; i < 2 * KV_BLOCK; i += GROUP)  // rows past the last may hold anything, NaN too
            scales()[i] = i % KV_BLOCK < count ? __uint_as_float(from[i * ROW_WORDS]) * (i < KV_BLOCK ? 1.0f : VALUE_UNITS) : 0.0f;
#pragma unroll 4
        for (u32 i = threadIdx.x; i < TILE; i += GROUP) {
            u32 row = i / CHUNKS, chunk = i % CHUNKS;
            const u32* word = from + row * ROW_WORDS + 1 + 2 * chunk;
            pool[row / KV_BLOCK * (TILE / 2) + word_of(row % KV_BLOCK, chunk)] = {
                byte_halves(word[0], 0, 1), byte_halves(word[0], 2, 3), byte_halves(word[1], 0, 1), byte_halves(word[1], 2, 3)};
        }
        __syncthreads();
        return pool;
    }
    // scores: of eight positions each, in the layout of mma.m16n8k16.
    __device__ void scale_scores(float (&scores)[KV_BLOCK / 8][4]) const { scale(scores, scales()); }
    __device__ void scale_weights(float (&weights)[KV_BLOCK / 8][4]) const { scale(weights, scales() + KV_BLOCK); }
    __device__ static void scale(float (&values)[KV_BLOCK / 8][4], const float* factors) {
        u32 column = threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < KV_BLOCK / 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) values[n][j] *= factors[8 * n + column + j % 2];
    }
};
#else
struct CacheBlocks {
    static constexpr u32 WORDS = 2 * TILE;
    Words* pool;
    const Words *k_cache, *v_cache;

    // Starts the copy of block b, which has `count` rows in use.
    __device__ void ask(u32 b, size_t block, u32 count) const {
        Words* tile = pool + b % 2 * TILE;
        for (u32 i = threadIdx.x; i < KV_BLOCK * CHUNKS; i += GROUP) {
            u32 row = i / CHUNKS, to = word_of(row, i % CHUNKS);
            bool wanted = row < count;  // rows past the last may hold anything, NaN too
            copy_async_or_zero(tile + to, k_cache + block * (KV_BLOCK * CHUNKS) + i, wanted);
            copy_async_or_zero(tile + KV_BLOCK * CHUNKS + to, v_cache + block * (KV_BLOCK * CHUNKS) + i, wanted);
        }
    }
    __device__ const Words* unpacked(u32 b, u32) const { return pool + b % 2 * TILE; }
    __device__ void scale_scores(float (&)[KV_BLOCK / 8][4]) const {}
    __device__ void scale_weights(float (&)[KV_BLOCK / 8][4]) const {}
};
#endif
