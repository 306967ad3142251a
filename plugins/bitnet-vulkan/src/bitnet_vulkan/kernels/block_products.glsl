// Products of decoder_layer_block.comp: each subgroup holds its weights in registers (matrix_narrow.glsl), multiplies them with
// the codes of up to eight rows, and puts its sums into shared memory, where they are added up in the order of subgroups.
// Lane 4 g + t of a subgroup has bytes 8 t .. 8 t + 7 of each block of weights, and of each plane of the codes of row g.
const uint FACTORS = BLOCK == 64 ? 2 : 1;  // scales of a row of weights for each block of 128 columns
#define FACTOR_ROW(WIDE_) (((WIDE_) + BLOCK - 1) / BLOCK)

uint split(uint matrices) { return gl_SubgroupID % SPLIT_K(matrices); }
uint matrix_of(uint matrices) { return gl_SubgroupID / SPLIT_K(matrices); }

// Loads piece I of the weights of round ROUND: rows 16 m + lane / 4 and 8 below; codes of 1, which add nothing, past the end.
#define WEIGHTS(NAME, COUNT, MATRICES, TILES_, WIDE_, ROUND, I)                                                     \
    [[unroll]] for (uint r = 0; r < 2 * TILES_; r++) {                                                              \
        uint at = (ROUND) * TILES_ * 16 + 8 * r + lane / 4, n = gl_WorkGroupID.x * PART(COUNT) + at;                \
        uint b = split(MATRICES) + (I) * SPLIT_K(MATRICES);                                                         \
        bool used = at < PART(COUNT) && n < COUNT && b < WIDE_ / 128;                                               \
        n += matrix_of(MATRICES) * COUNT;                                                                           \
        words[r][I] = used ? w_##NAME[(n * (WIDE_ / 128) + b) * 4 + lane % 4] : uvec2(0x55555555u);                 \
        [[unroll]] for (uint c = 0; c < FACTORS; c++)                                                               \
            factors[r][I][c] = used ? scale_##NAME[n * FACTOR_ROW(WIDE_) + b * 128 / BLOCK + c] : 0.0;              \
    }

// Declares the weights of a product, and loads the first ones.
#define PRODUCT(NAME, COUNT, MATRICES, TILES_, WIDE_)                                                               \
    uvec2 words[2 * TILES_][PIECES(WIDE_, MATRICES)];                                                               \
    float factors[2 * TILES_][PIECES(WIDE_, MATRICES)][FACTORS];                                                    \
    [[unroll]] for (uint i = 0; i < PIECES(WIDE_, MATRICES); i++) {                                                 \
        WEIGHTS(NAME, COUNT, MATRICES, TILES_, WIDE_, 0, i)                                                         \
    }

// Loads the codes of piece I, and the scales of the rows whose sums a lane gets.
#define ACTIVATE(TO, UNITS_, I, WIDE_, MATRICES)                                                                    \
    if (I < PIECES(WIDE_, MATRICES)) {                                                                              \
        uint b = min(split(MATRICES) + (I) * SPLIT_K(MATRICES), WIDE_ / 128 - 1);                                   \
        [[unroll]] for (uint h = 0; h < 2; h++) {                                                                   \
            TO[h] = LANE_CODES(b, h);                                                                               \
            UNITS_[h] = PLANE_SCALES(b, COLUMN(h));                                                                 \
        }                                                                                                           \
    }

// Adds the products of piece I: the exact sum of each plane's 32 columns is scaled as its activations, and the planes with
// the same scale of weights together as these.
#define MULTIPLY_PIECE(TILES_, I)                                                                                   \
    float parts[TILES_][4];                                                                                         \
    [[unroll]] for (uint s = 0; s < 4; s++) {                                                                       \
        RIGHT tokens[2];                                                                                            \
        [[unroll]] for (uint j = 0; j < 2; j++) { ACTIVATIONS(tokens[j], q[s / 2][s % 2 * 2 + j], s) }              \
        [[unroll]] for (uint t = 0; t < TILES_; t++) {                                                              \
            LEFT codes[2];                                                                                          \
            [[unroll]] for (uint j = 0; j < 2; j++) {                                                               \
                SIGNED_CODES(codes[j], words[2 * t][I][j], words[2 * t + 1][I][j], s)                               \
            }                                                                                                       \
            SUM exact = coopMatMulAdd(codes[0], tokens[0], SUM(0.0));                                               \
            exact = coopMatMulAdd(codes[1], tokens[1], exact);                                                      \
            [[unroll]] for (uint j = 0; j < 4; j++) {                                                               \
                float scaled = exact[j] * units[j % 2][s];                                                          \
                parts[t][j] = s % (4 / FACTORS) == 0 ? scaled : parts[t][j] + scaled;                               \
                if (s % (4 / FACTORS) == 4 / FACTORS - 1)                                                           \
                    whole[t][j] += parts[t][j] * factors[2 * t + j / 2][I][s / (4 / FACTORS)];                      \
            }                                                                                                       \
        }                                                                                                           \
    }

// Adds up the products of a subgroup's tiles and columns. Weights of the next round, if there are `more`, take the place of
// those that have been multiplied.
#define MULTIPLY(NAME, COUNT, MATRICES, TILES_, WIDE_)                                                              \
    uvec4 q[2], q_next[2];                                                                                          \
    vec4 units[2], units_next[2];                                                                                   \
    ACTIVATE(q, units, 0, WIDE_, MATRICES)                                                                          \
    [[unroll]] for (uint i = 0; i < PIECES(WIDE_, MATRICES); i++) {                                                 \
        ACTIVATE(q_next, units_next, i + 1, WIDE_, MATRICES)                                                        \
        MULTIPLY_PIECE(TILES_, i)                                                                                   \
        if (more) { WEIGHTS(NAME, COUNT, MATRICES, TILES_, WIDE_, round + 1, i) }                                   \
        [[unroll]] for (uint h = 0; h < 2; h++) {                                                                   \
            q[h] = q_next[h];                                                                                       \
            units[h] = units_next[h];                                                                               \
        }                                                                                                           \
    }

// Returns the product of a row with place `at` of a matrix's rows of a round.
float summed(uint matrices, uint matrix, uint row, uint at, uint pitch) {
    float sum = 0.0;
    [[unroll]] for (uint k = 0; k < SPLIT_K(matrices); k++) {
        uint from = ((k * matrices + matrix) * TOKENS + row) * pitch + at;
        sum += uintBitsToFloat(q_shared[from / 4][from % 4]);
    }
    return sum;
}

// Computes TO[row, n] (+)= the product, or glu of both products, for all rows. What is added to an output is loaded before its
// sums are computed.
#define MULTIPLY_ROWS(NAME, COUNT, MATRICES, TILES_, WIDE_, ALL_ROUNDS, TO, ADDED)                                  \
    [[dont_unroll]] for (uint round = 0; round < ALL_ROUNDS; round++) {                                             \
        float old[OUTPUTS(TILES_)];                                                                                 \
        [[unroll]] for (uint k = 0; k < OUTPUTS(TILES_); k++) {                                                     \
            OUTPUT(COUNT, TILES_)                                                                                   \
            old[k] = ADDED == 1 && own ? TO[row * COUNT + n] : 0.0;                                                 \
        }                                                                                                           \
        float whole[TILES_][4];                                                                                     \
        [[unroll]] for (uint t = 0; t < TILES_; t++)                                                                \
            [[unroll]] for (uint j = 0; j < 4; j++) whole[t][j] = 0.0;                                              \
        bool more = round + 1 < ALL_ROUNDS;                                                                         \
        { MULTIPLY(NAME, COUNT, MATRICES, TILES_, WIDE_) }                                                          \
        [[unroll]] for (uint t = 0; t < TILES_; t++)                                                                \
            [[unroll]] for (uint j = 0; j < 4; j++) {                                                               \
                uint to = ((split(MATRICES) * MATRICES + matrix_of(MATRICES)) * TOKENS + COLUMN(j)) * PITCH(TILES_); \
                uint place = to + 16 * t + ROW(j);                                                                  \
                q_shared[place / 4][place % 4] = floatBitsToUint(whole[t][j]);                                      \
            }                                                                                                       \
        work_barrier();                                                                                             \
        [[unroll]] for (uint k = 0; k < OUTPUTS(TILES_); k++) {                                                     \
            OUTPUT(COUNT, TILES_)                                                                                   \
            if (!own) continue;                                                                                     \
            float value = summed(MATRICES, 0, row, at, PITCH(TILES_));                                              \
            if (MATRICES == 2) value = glu(value, summed(2, 1, row, at, PITCH(TILES_)));                            \
            if (lost) value = uintBitsToFloat(NAN_BITS);                                                            \
            TO[row * COUNT + n] = old[k] + value;                                                                   \
        }                                                                                                           \
        if (ALL_ROUNDS > 1) work_barrier();                                                                         \
    }
// Outputs of an invocation, and the row and column of one; own: whether it exists.
#define OUTPUTS(TILES_) ((16 * TILES_ * TOKENS + GROUP - 1) / GROUP)
#define OUTPUT(COUNT, TILES_)                                                                                       \
    uint at = (LID + k * GROUP) % (16 * TILES_), row = (LID + k * GROUP) / (16 * TILES_);                           \
    uint n = gl_WorkGroupID.x * PART(COUNT) + round * 16 * TILES_ + at;                                             \
    bool own = row < p.rows && round * 16 * TILES_ + at < PART(COUNT) && n < COUNT;
