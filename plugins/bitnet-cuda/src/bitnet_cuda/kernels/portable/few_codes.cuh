// Codes of ternary weights for few rows of activations. Loading the weights takes all of the time, so a warp issues the
// loads of all its weights before it uses any. A block serves ROWS weight rows, a multiple of 8. Its warps share the
// columns: warp w takes units of 256 columns w, w + WARPS, ..., at most STEPS of them. Lane (g, t) loads 16 bytes, half
// of an I2_S block, of rows g and g + 8 of each tile of 16.
#define WARPS (GROUP / 32)
#define TILES ((ROWS + 15) / 16)

struct Codes {
    Words of[STEPS][TILES][2];
};

// row_of(j): the weight row of row j of the block.
template <class RowOf>
__device__ inline void load_codes(Codes& codes, const Words* w, u32 width, RowOf row_of) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4, row_words = width / 64;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        u32 c = (i * WARPS + warp) * 4 + t;
#pragma unroll
        for (int j = 0; j < 2 * TILES; j++)
            codes.of[i][j / 2][j % 2] = 8 * j < ROWS && c < row_words ? load_streaming(w + (size_t)row_of(8 * j + g) * row_words + c)
                                                                      : Words{0, 0, 0, 0};
    }
}
