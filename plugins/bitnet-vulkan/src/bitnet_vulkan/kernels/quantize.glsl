// Norm and int8 quantization of one row by one workgroup, the row kept in registers. The including kernel defines the
// bindings gamma and gamma4 and
//     float raw(uint row, uint column)
//     vec4 raw4(uint row, uint word)            columns 4 word..4 word + 3, where rows are a multiple of 4 long
//     void put(uint row, uint word, uint codes)
// a = max(max|y|, 1e-5), q = clip(round_half_even(y * (127 / a)), -128, 127), scale = a / 127.
// A value that is not finite makes the sum of squares, or the largest value, not finite too.
const uint ROW_WORDS = (WIDTH / 4 + GROUP - 1) / GROUP;

struct Quantized {
    float scale;
    int sum;
};

Quantized quantize_row(uint row, uint width, float eps) {
    vec4 y[ROW_WORDS], g[ROW_WORDS];
    float squares = 0.0;
    [[unroll]] for (uint i = 0; i < ROW_WORDS; i++) {
        uint word = LID + i * GROUP;
        y[i] = g[i] = vec4(0.0);
        if (width % 4 != 0) {
            for (uint e = 0; e < 4 && 4 * word + e < width; e++) {
                y[i][e] = raw(row, 4 * word + e);
                if (NORM == 1) g[i][e] = gamma[4 * word + e];
            }
        } else if (4 * word < width) {
            y[i] = raw4(row, word);
            if (NORM == 1) g[i] = gamma4[word];  // now, so that it is there when it is needed
        }
        squares += y[i].x * y[i].x + y[i].y * y[i].y + y[i].z * y[i].z + y[i].w * y[i].w;
    }
    float inverse = 1.0, bad = 0.0;
    if (NORM == 1) {
        squares = group_sum(squares);
        if (not_finite(squares)) bad = 1.0;
        inverse = 1.0 / sqrt(squares / float(width) + eps);
    }
    float largest = 0.0;
    [[unroll]] for (uint i = 0; i < ROW_WORDS; i++) {
        if (NORM == 1) y[i] = y[i] * inverse * g[i];
        [[unroll]] for (uint e = 0; e < 4; e++) {
            largest = not_finite(y[i][e]) ? uintBitsToFloat(0x7f800000u) : max(largest, abs(y[i][e]));
        }
    }
    largest = group_max(largest);
    if (not_finite(largest)) bad = 1.0;
    float a = max(largest, 1e-5), factor = 127.0 / a;
    int total = 0;  // at most 128 * width: exact in f32 up to 2^17 columns
    [[unroll]] for (uint i = 0; i < ROW_WORDS; i++) {
        uint codes = 0;
        [[unroll]] for (uint e = 0; e < 4; e++) {
            int code = bad > 0.0 ? 0 : int(clamp(roundEven(y[i][e] * factor), -128.0, 127.0));
            total += code;
            codes |= (uint(code) & 255u) << (8 * e);
        }
        uint word = LID + i * GROUP;
        if (4 * word < WIDTH) put(row, word, codes);
    }
    total = group_sum(total);  // its barriers also show every put to the whole group
    return Quantized(bad > 0.0 ? uintBitsToFloat(NAN_BITS) : a / 127.0, total);
}
