// Products of decoder_layer_matrix.comp: each subgroup holds its weights in registers (matrix_narrow.glsl), multiplies them
// with the codes of up to eight rows, and puts its sums into shared memory, where they are added up in the order of
// subgroups.

uint split() { return gl_SubgroupID % SPLIT_K; }
uint half_of() { return gl_SubgroupID / SPLIT_K; }

// Loads the weights of round ROUND: rows 16 m + lane / 4 and 8 below.
#define WEIGHTS(NAME, COUNT, MATRICES, TILES_, WIDE_, ROUND)                                                        \
    [[unroll]] for (uint r = 0; r < 2 * TILES_; r++) {                                                              \
        uint at = (MATRICES == 2 ? ROUND * TILES_ * 16 : (2 * ROUND + half_of()) * TILES_ * 16) + 8 * r + lane / 4; \
        uint n = gl_WorkGroupID.x * PART(COUNT) + at;                                                               \
        bool own = at < PART(COUNT) && n < COUNT;                                                                   \
        if (MATRICES == 2) n += half_of() * COUNT;                                                                  \
        [[unroll]] for (uint i = 0; i < PIECES(WIDE_); i++) {                                                       \
            uint b = split() + i * SPLIT_K;                                                                         \
            bool used = own && b < WIDE_ / 128;                                                                     \
            words[r][i] = used ? w_##NAME[(n * (WIDE_ / 128) + b) * 4 + lane % 4] : uvec2(0);                       \
        }                                                                                                           \
    }

// Adds up the products of a subgroup's tiles and columns, for all rows.
#define MULTIPLY(TILES_, WIDE_)                                                                                     \
    [[unroll]] for (uint i0 = 0; i0 < PIECES(WIDE_); i0 += LANES) {                                                 \
        uvec2 q_words[LANES][4];                                                                                    \
        [[unroll]] for (uint k = 0; k < LANES && i0 + k < PIECES(WIDE_); k++) {                                     \
            uint b = min(split() + (i0 + k) * SPLIT_K, WIDE_ / 128 - 1), token = min(lane / 4, p.rows - 1);         \
            [[unroll]] for (uint s = 0; s < 4; s++)                                                                 \
                q_words[k][s] = codes2[CODES_AT / 2 + (token * (WIDE_ / 128) + b) * 16 + 4 * s + lane % 4];         \
        }                                                                                                           \
        [[unroll]] for (uint k = 0; k < LANES && i0 + k < PIECES(WIDE_); k++)                                       \
            [[unroll]] for (uint s = 0; s < 4; s++)                                                                 \
                [[unroll]] for (uint j = 0; j < 2; j++) {                                                           \
                    RIGHT tokens;                                                                                   \
                    ACTIVATIONS(tokens, q_words[k][s][j], s)                                                        \
                    [[unroll]] for (uint t = 0; t < TILES_; t++) {                                                  \
                        LEFT codes;                                                                                 \
                        CODES(codes, words[2 * t][i0 + k][j], words[2 * t + 1][i0 + k][j], s)                       \
                        whole[t] = coopMatMulAdd(codes, tokens, whole[t]);                                          \
                    }                                                                                               \
                }                                                                                                   \
    }

// Declares the weights of a product, and loads the first ones.
#define PRODUCT(NAME, COUNT, MATRICES, TILES_, WIDE_)                                                               \
    uvec2 words[2 * TILES_][PIECES(WIDE_)];                                                                         \
    WEIGHTS(NAME, COUNT, MATRICES, TILES_, WIDE_, 0)

// Puts the sums of round ROUND into shared memory, and loads the weights of the next round.
#define SUM_UP(NAME, COUNT, MATRICES, TILES_, WIDE_, ROUND, ALL_ROUNDS)                                             \
    {                                                                                                               \
        SUM whole[TILES_];                                                                                          \
        [[unroll]] for (uint t = 0; t < TILES_; t++) whole[t] = SUM(0.0);                                           \
        MULTIPLY(TILES_, WIDE_)                                                                                     \
        if (ROUND + 1 < ALL_ROUNDS) { WEIGHTS(NAME, COUNT, MATRICES, TILES_, WIDE_, (ROUND + 1)) }                  \
        [[unroll]] for (uint t = 0; t < TILES_; t++)                                                                \
            [[unroll]] for (uint e = 0; e < 4; e++) {                                                               \
                uint at = ((split() * 2 + half_of()) * TOKENS + COLUMN(e)) * (16 * TILES_) + 16 * t + ROW(e);       \
                q_shared[at / 4][at % 4] = floatBitsToUint(whole[t][e]);                                            \
            }                                                                                                       \
        work_barrier();                                                                                             \
    }

// Returns the product of a row with place `at` of a half's rows; unit: the scale of the matrix row.
float summed(uint half_, uint row, uint at, uint places, float unit) {
    float sum = 0.0;
    [[unroll]] for (uint k = 0; k < SPLIT_K; k++) {
        uint from = ((k * 2 + half_) * TOKENS + row) * places + at;
        sum += uintBitsToFloat(q_shared[from / 4][from % 4]);
    }
    return float(int(sum * UNIT) - sums[SUMS_AT + row]) * partial[SCALES_AT + row] * unit;
}

// Computes y[row, n] (+)= the product for all rows.
#define STORE_SUMS(NAME, COUNT, TILES_, WIDE_, ALL_ROUNDS, TO, ADDED)                                               \
    [[dont_unroll]] for (uint round = 0; round < ALL_ROUNDS; round++) {                                             \
        SUM_UP(NAME, COUNT, 1, TILES_, WIDE_, round, ALL_ROUNDS)                                                    \
        [[dont_unroll]] for (uint i = LID; i < 32 * TILES_ * p.rows; i += GROUP) {                                  \
            uint at = i % (32 * TILES_), row = i / (32 * TILES_);                                                   \
            uint place = round * 32 * TILES_ + at, n = gl_WorkGroupID.x * PART(COUNT) + place;                      \
            if (place >= PART(COUNT) || n >= COUNT) continue;                                                       \
            float old = ADDED == 1 ? TO[row * COUNT + n] : 0.0;                                                     \
            float value = summed(at / (16 * TILES_), row, at % (16 * TILES_), 16 * TILES_, scale_##NAME[n]);        \
            TO[row * COUNT + n] = old + (lost ? uintBitsToFloat(NAN_BITS) : value);                                 \
        }                                                                                                           \
        if (ALL_ROUNDS > 1) work_barrier();                                                                         \
    }
