// Tiles of 16 matrix rows in decoder_layer_block.comp. A workgroup has a part of the rows of each matrix. All of its subgroups
// share the columns, or for gate and up (MATRICES 2) half of the subgroups those of each. A subgroup has all tiles of the part,
// in as few rounds as its registers allow.
const uint TOKENS = 8;  // rows of activations
#define PART(COUNT) (((COUNT) + MEMBERS - 1) / MEMBERS)
#define MOST_TILES(MATRICES) (4 - (MATRICES))
#define ALL_TILES(COUNT) ((PART(COUNT) + 15) / 16)
#define ROUNDS(COUNT, MATRICES) ((ALL_TILES(COUNT) + MOST_TILES(MATRICES) - 1) / MOST_TILES(MATRICES))
#define TILES(COUNT, MATRICES) ((ALL_TILES(COUNT) + ROUNDS(COUNT, MATRICES) - 1) / ROUNDS(COUNT, MATRICES))
// Subgroups that share the columns of a matrix, and blocks of 128 columns of each.
#define SPLIT_K(MATRICES) (GROUP / WAVE / (MATRICES))
#define PIECES(WIDE_, MATRICES) (((WIDE_) / 128 + SPLIT_K(MATRICES) - 1) / SPLIT_K(MATRICES))
const uint TILES_QKV = TILES(QKV, 1), TILES_X = TILES(HIDDEN, 1), TILES_UP = TILES(FFN, 2);
const uint ROUNDS_QKV = ROUNDS(QKV, 1), ROUNDS_X = ROUNDS(HIDDEN, 1), ROUNDS_UP = ROUNDS(FFN, 2);
const uint LARGER_TILES = TILES_QKV > TILES_X ? TILES_QKV : TILES_X;
const uint LARGEST = LARGER_TILES > TILES_UP ? LARGER_TILES : TILES_UP;
#define PITCH(TILES_) (16 * (TILES_) + 4)  // sums of a row in shared memory; four more spread rows over banks
const uint SUMS_POOL = GROUP / WAVE * TOKENS * PITCH(LARGEST) / 4;
shared uvec4 q_shared[SUMS_POOL > WAVES_POOL ? SUMS_POOL : WAVES_POOL];
