// The shares of positions that a block of rope_attention_mma.cuh computes. With FRESH 1 a block has one share of one row.
// With more, gridDim.z blocks take the shares of all rows in turns: most rows have fewer shares than SPLITS, and a block
// without one takes time too.

// A multiple of 16, so that no tile crosses a cache block.
__device__ inline u32 positions_of_share(u32 length, u32 shares) { return ((length + shares - 1) / shares + 15) / 16 * 16; }

// Returns the number of shares of a row's positions, 1 for a row without a slot.
__device__ inline u32 shares_of(const Row& row, u32 rows) {
    u32 length = (u32)row.position + 1, shares = (length + SHARE - 1) / SHARE;
    if (row.position < 0 || row.slot < 0) return 1;
    if (FRESH == 1 && rows == 1) shares = max(shares, min((length + SPAN / 2 - 1) / (SPAN / 2), (u32)FINE_PARTS));
    shares = SPLITS == 1 || length <= ROUND ? 1 : min((u32)SPLITS, shares);
    if (SPLITS >= 18 && length > SPLITS * SHARE) {  // so many that rounding may leave the last ones without positions
        u32 each = positions_of_share(length, shares);
        shares = min(shares, (length + each - 1) / each);  // without min, the compiler no longer knows a limit
    }
    return shares;
}

struct Turn {
    u32 row, split;
};

#if FRESH > 1
#define ROWS_OF_LANE ((FRESH + 31) / 32)

struct Turns {
    u32 end[ROWS_OF_LANE];  // the shares of rows up to lane, lane + 32, ...
    u32 count;

    __device__ Turns(const Row* step, u32 rows) : count(0) {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < ROWS_OF_LANE; i++) {
            u32 row = lane + 32 * i, own = row < rows ? shares_of(step[row], rows) : 0, all = own, before = 0;
            for (u32 d = 1; d < 32; d *= 2) {
                u32 other = shuffle_xor(all, d);
                all += other;
                if (lane & d) before += other;
            }
            end[i] = count + before + own;
            count += all;
        }
    }
    __device__ u32 first() const { return blockIdx.z; }
    // turn: below count.
    __device__ Turn operator[](u32 turn) const {
        u32 rows = 0, shares = 0;
#pragma unroll
        for (int i = 0; i < ROWS_OF_LANE; i++) {
            bool passed = end[i] <= turn;
            rows += passed;
            if (passed) shares = end[i];
        }
        return {(u32)warp_sum_int(rows), turn - warp_max_bits(shares)};
    }
};
#else
struct Turns {
    u32 count;

    __device__ Turns(const Row* step, u32 rows) : count(blockIdx.z < shares_of(step[blockIdx.y], rows)) {}
    __device__ u32 first() const { return 0; }
    __device__ Turn operator[](u32 turn) const { return {blockIdx.y, blockIdx.z}; }
};
#endif
