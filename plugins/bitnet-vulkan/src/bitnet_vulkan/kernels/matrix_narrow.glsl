// Products of ternary weights on matrix units of f16, of 16 x 16 and 16 x 8. Operands are made in registers: as numbers of
// 11 bits, codes and activations are exact in f16, and so are their sums in f32.
const float UNIT = 16777216.0;  // a code is a subnormal f16: its multiple of 2^-24

// Places of the elements of an invocation: a left operand has in each of two rows (lane / 4, and 8 below) two
// neighbours, from column 2 (lane % 4) on, and two 8 columns further; a right one the same with columns for rows; sums
// have two neighbours in each row. This is the layout of NVIDIA's drivers; Vulkan does not specify it.
#define LEFT coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, 16, 8, gl_MatrixUseB>
#define SUM coopmat<float, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>
const uint ELEMENTS = 4;
#define ROW(E) (lane / 4 + (E) / 2 * 8)
#define COLUMN(E) (lane % 4 * 2 + (E) % 2)

// Codes of plane S of a word of two rows: 4^(3 - S) times their value.
#define CODES(TO, ABOVE, BELOW, S)                                                                               \
    [[unroll]] for (uint h = 0; h < 2; h++) {                                                                    \
        f16vec2 above = unpackFloat2x16((ABOVE) >> (8 * h) & 0x00030003u << (6 - 2 * (S)));                      \
        f16vec2 below = unpackFloat2x16((BELOW) >> (8 * h) & 0x00030003u << (6 - 2 * (S)));                      \
        TO[2 * h] = above.x;                                                                                     \
        TO[2 * h + 1] = above.y;                                                                                 \
        TO[4 + 2 * h] = below.x;                                                                                 \
        TO[4 + 2 * h + 1] = below.y;                                                                             \
    }
// The same less one: the bits of 1024 + v are those of 1024, and v.
#define SIGNED_CODES(TO, ABOVE, BELOW, S)                                                                        \
    [[unroll]] for (uint h = 0; h < 2; h++) {                                                                    \
        const f16vec2 zero = f16vec2(1024.0 + float(1 << (6 - 2 * (S))));                                        \
        uint upper = (ABOVE) >> (8 * h) & 0x00030003u << (6 - 2 * (S));                                          \
        uint lower = (BELOW) >> (8 * h) & 0x00030003u << (6 - 2 * (S));                                          \
        f16vec2 above = unpackFloat2x16(upper | 0x64006400u) - zero;                                             \
        f16vec2 below = unpackFloat2x16(lower | 0x64006400u) - zero;                                             \
        TO[2 * h] = above.x;                                                                                     \
        TO[2 * h + 1] = above.y;                                                                                 \
        TO[4 + 2 * h] = below.x;                                                                                 \
        TO[4 + 2 * h + 1] = below.y;                                                                             \
    }
// Activations of a word of signed bytes, divided by the factor of plane S: the bits of 1024 + 128 + q are those of 1024,
// and q with its sign inverted.
#define ACTIVATIONS(TO, WORD, S)                                                                                 \
    [[unroll]] for (uint h = 0; h < 2; h++) {                                                                    \
        const float16_t factor = float16_t(1.0 / float(1 << (6 - 2 * (S))));                                     \
        f16vec2 lifted = unpackFloat2x16(((WORD) >> (8 * h) & 0x00ff00ffu) ^ 0x64806480u);                       \
        f16vec2 two = fma(lifted, f16vec2(factor), f16vec2(float16_t(-1152.0) * factor));                        \
        TO[2 * h] = two.x;                                                                                       \
        TO[2 * h + 1] = two.y;                                                                                   \
    }
