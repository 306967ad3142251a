// Rows first.. of ternary weights w[first + rows, width / 4] from Q2_0 blocks[rows, columns / BLOCK, 2 + BLOCK / 4]: an
// f16 scale, then four consecutive codes in a byte, the first in bits 1-0. Byte 4 a + r of 128 columns of w holds columns
// 4 a + r + (0, 32, 64, 96), the first in bits 7-6. Blocks with a scale of 0 and padding columns get code 1. odd[0]
// becomes 1 if a block with another scale holds a code of 3, or no code but 1.
// One thread for a word of w, TILE_N = GROUP words per block; the threads of the first words of 128 columns also look
// for odd blocks.
#include "prelude.cuh"

#define BLOCK_BYTES (2 + BLOCK / 4)
#define ZEROS 0x55u

__device__ inline bool has_scale(const u8* block) { return (block[0] | (block[1] & 0x7f)) != 0; }

__device__ inline bool is_odd(const u8* block) {
    u32 threes = 0, others = 0;
    for (u32 i = 2; i < BLOCK_BYTES; i++) {
        threes |= block[i] & block[i] >> 1;
        others |= block[i] ^ ZEROS;
    }
    return (threes & ZEROS) != 0 || others == 0;
}

KERNEL repack_q2_0(const u8* blocks, u32* w, int* odd, u32 rows, u32 columns, u32 width, u32 first) {
    let_next_start();
    wait_for_previous();
    u32 words = width / 16, at = blockIdx.x * GROUP + threadIdx.x, row = at / words, word = at % words;
    if (row >= rows) return;
    const u8* from = blocks + (size_t)row * (columns / BLOCK) * BLOCK_BYTES;
    u32 result = 0;
    for (u32 plane = 0; plane < 4; plane++) {
        u32 column = word / 8 * 128 + 32 * plane + word % 8 * 4, codes = ZEROS;
        if (column < columns) {
            const u8* block = from + column / BLOCK * BLOCK_BYTES;
            if (has_scale(block)) codes = block[2 + column % BLOCK / 4];
            if (word % 8 == 0 && column % BLOCK == 0 && has_scale(block) && is_odd(block)) *odd = 1;
        }
        u32 spread = (codes | codes << 6 | codes << 12 | codes << 18) & 0x03030303u;  // a code in each byte
        result |= spread << (6 - 2 * plane);
    }
    w[(size_t)first * words + at] = result;
}
