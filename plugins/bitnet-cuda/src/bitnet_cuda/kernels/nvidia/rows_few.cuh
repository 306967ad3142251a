// Ternary products of up to TILE_T = 8 tokens with activations in shared memory, on tensor cores: exact integers.
// ROW_WARPS warps have 16 * M_TILES weight rows each; SHARES groups of such warps share the columns, in units of 256:
// group w takes units w, w + SHARES, ..., at most STEPS of them. All codes are in flight to registers before the
// preceding kernels have finished, as in ternary_few.cuh.
// A lane's 16 bytes of codes are half of an I2_S block; any order of columns is valid. Planes are masked, never
// shifted, and keep their factors 64, 16, 4 and 1 in separate sums. In every other 128 bytes of a token the halves are
// exchanged in shared memory, which avoids bank conflicts.
#define WARPS (GROUP / 32)
#define ROW_WARPS (WARPS / SHARES)
#define ROWS (16 * M_TILES * ROW_WARPS)
#define SUM_PITCH (ROWS + 4)

// Shared by a block besides activations and sums: scales and sums of codes of its tokens.
struct Shared {
    float scale[TILE_T];
    int qsum[TILE_T];
};

struct Few {
    Words* tokens;  // [TILE_T][pitch], later sums [SHARES][TILE_T][SUM_PITCH]
    u32 g, t, share, row, words, pitch;  // row: the warp's first; words: of a token

    __device__ Few(Words* pool, u32 width) : tokens(pool) {
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        g = lane / 4, t = lane % 4, share = warp / ROW_WARPS, row = warp % ROW_WARPS * (16 * M_TILES);
        words = width / 16, pitch = words + 2;
    }
    // The place of a 16-byte word of a token.
    __device__ Words* at(u32 token, u32 word) const { return tokens + token * pitch + (word ^ (word >> 1 & 4)); }
    __device__ u32 piece(int step) const { return (step * SHARES + share) * 4 + t; }

    // row_of(r): the weight row of row r of the block.
    template <class RowOf>
    __device__ void load(Words (&codes)[STEPS][M_TILES][2], const Words* w, RowOf row_of) const {
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int j = 0; j < 2 * M_TILES; j++)
                codes[i][j / 2][j % 2] = piece(i) < words / 4
                                             ? load_streaming(w + (size_t)row_of(row + 8 * j + g) * (words / 4) + piece(i))
                                             : Words{0, 0, 0, 0};
    }
    __device__ void multiply(int (&acc)[M_TILES][4][4], const Words (&codes)[M_TILES][2], int step) const {
        u32 from = min(piece(step), words / 4 - 1);  // codes past the end are 0, so any activations will do
#pragma unroll
        for (int s = 0; s < 4; s++) {
            Words b = *at(g, from / 2 * 8 + 2 * s + from % 2);
            const u32 mask = 0x03030303u << (6 - 2 * s);
#pragma unroll
            for (int j = 0; j < M_TILES; j++) {
                Words low = codes[j][0], high = codes[j][1];
                u32 even[4] = {low.x & mask, high.x & mask, low.y & mask, high.y & mask};
                u32 odd[4] = {low.z & mask, high.z & mask, low.w & mask, high.w & mask};
                mma(acc[j][s], even, b.x, b.y);
                mma(acc[j][s], odd, b.z, b.w);
            }
        }
    }
    // Writes all sums to shared memory.
    __device__ void put(const int (&acc)[M_TILES][4][4]) const {
        __syncthreads();
        int* sums = (int*)tokens + share * (TILE_T * SUM_PITCH) + row + g;
#pragma unroll
        for (int i = 0; i < 4 * M_TILES; i++) {
            auto plane = [&](int s) { return acc[i / 4][s][i % 4] >> (6 - 2 * s); };
            sums[(2 * t + i % 2) * SUM_PITCH + 8 * (i / 2)] = plane(0) + plane(1) + plane(2) + plane(3);
        }
        __syncthreads();
    }
    // Returns sum_k (code - 1) q of row r of the block and a token.
    __device__ int sum(const Shared& s, u32 token, u32 r) const {
        int dot = -s.qsum[token];
#pragma unroll
        for (int i = 0; i < SHARES; i++) dot += ((const int*)tokens)[(i * TILE_T + token) * SUM_PITCH + r];
        return dot;
    }
};
