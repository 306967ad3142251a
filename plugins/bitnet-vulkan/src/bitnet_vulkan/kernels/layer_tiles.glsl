// Tiles of 16 matrix rows in decoder_layer_matrix.comp. The subgroups of a workgroup are two halves: each has half of the
// tiles of the workgroup's part of a matrix (of gate and up: one of the two matrices), and its SPLIT_K subgroups share the
// columns.
const uint SPLIT_K = GROUP / WAVE / 2, TOKENS = 8, MOST_TILES = 4;
// Tiles of half of the subgroups for a workgroup's part of COUNT rows, and rounds of at most MOST_TILES of them.
#define PART(COUNT) (((COUNT) + MEMBERS - 1) / MEMBERS)
#define HALF_TILES(COUNT, MATRICES) ((PART(COUNT) * MATRICES + 31) / 32)
#define ROUNDS(COUNT, MATRICES) ((HALF_TILES(COUNT, MATRICES) + MOST_TILES - 1) / MOST_TILES)
#define TILES(COUNT, MATRICES) ((HALF_TILES(COUNT, MATRICES) + ROUNDS(COUNT, MATRICES) - 1) / ROUNDS(COUNT, MATRICES))
#define PIECES(WIDE_) (((WIDE_) / 128 + SPLIT_K - 1) / SPLIT_K)
const uint TILES_QKV = TILES(QKV, 1), TILES_X = TILES(HIDDEN, 1), TILES_UP = (PART(FFN) + 15) / 16;
const uint ROUNDS_UP = (TILES_UP + MOST_TILES - 1) / MOST_TILES, EACH_UP = (TILES_UP + ROUNDS_UP - 1) / ROUNDS_UP;
const uint LARGER_TILES = TILES_QKV > TILES_X ? TILES_QKV : TILES_X;
const uint LARGEST = LARGER_TILES > EACH_UP ? LARGER_TILES : EACH_UP;
const uint SUMS_POOL = SPLIT_K * 2 * 16 * LARGEST * TOKENS / 4;
shared uvec4 q_shared[SUMS_POOL > WAVES_POOL ? SUMS_POOL : WAVES_POOL];

