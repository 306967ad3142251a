// Norm and int8 quantization of one row by one workgroup, with the row in registers: a = max(max|y|, 1e-5), q =
// clip(round_half_even(y * (127 / a)), -128, 127), scale = a / 127. If ABLOCK is 32 or 128, the same for each ABLOCK
// columns with a floor of 1e-20, and scales and sums of 32 columns.
// With z = x gamma and m = max|z| the codes are round(z 127 / m), unless the floor applies: so there is one reduction,
// and the square root is only a factor. A value that is not finite makes the sum of squares, or m, not finite too.
// The including kernel defines MOST_WIDTH (the padded columns of its widest row), BLOCKED (whether it needs sums of 32
// columns, as if ABLOCK is not 0), and
//     void put(uint word, uint codes)                     columns 4 word .. 4 word + 3
//     void put_block(uint block, float scale, int sum)    columns 32 block .. 32 block + 31
const uint ROW_WORDS = (MOST_WIDTH / 4 + GROUP - 1) / GROUP;

struct Quantized {
    float scale;
    int sum;
};

// Quantizes the row. x, g: words LID, LID + GROUP, ... of the row and of gamma, zero past its end. norm, width
// (padded): constants. Every put is visible to the whole group afterwards.
Quantized codes_of(vec4 x[ROW_WORDS], vec4 g[ROW_WORDS], uint norm, uint columns, uint width, float eps) {
    const uint words = (width / 4 + GROUP - 1) / GROUP;
    const float least = ABLOCK == 0 ? 1e-5 : 1e-20;
    float squares = 0.0;
    uint largest = 0, largest_of[ROW_WORDS];  // largest_of: of the ABLOCK columns around a word
    [[unroll]] for (uint i = 0; i < ROW_WORDS; i++) {
        if (i >= words) break;
        if (norm == 1) {
            squares += x[i].x * x[i].x + x[i].y * x[i].y + x[i].z * x[i].z + x[i].w * x[i].w;
            x[i] *= g[i];
        }
        uvec4 bits = floatBitsToUint(x[i]) & 0x7fffffffu;  // bits have the order of numbers, with NaN above all
        largest_of[i] = max(max(bits.x, bits.y), max(bits.z, bits.w));
        if (ABLOCK != 0) largest_of[i] = max_of_near(largest_of[i], ABLOCK / 4);
        largest = max(largest, largest_of[i]);
    }
    group_sum_max(squares, largest);
    float most = uintBitsToFloat(largest);
    bool bad = not_finite(squares) || not_finite(most);
    float inverse = norm == 1 ? 1.0 / sqrt(squares / float(columns) + eps) : 1.0;
    float a = max(most * inverse, least), factor = inverse * (127.0 / a);
    int total = 0;  // at most 128 * width: exact in f32 up to 2^17 columns
    [[unroll]] for (uint i = 0; i < ROW_WORDS; i++) {
        if (i >= words) break;
        uint word = LID + i * GROUP;
        if (ABLOCK != 0) {
            a = max(uintBitsToFloat(largest_of[i]) * inverse, least);
            factor = inverse * (127.0 / a);
        }
        ivec4 code = bad ? ivec4(0) : ivec4(clamp(roundEven(x[i] * factor), -128.0, 127.0));
        int sum = code.x + code.y + code.z + code.w;
        total += sum;
        uvec4 bytes = uvec4(code) & 255u;
        if (4 * word < width) put(word, bytes.x | bytes.y << 8 | bytes.z << 16 | bytes.w << 24);
        if (BLOCKED) {
            sum = sum_of_8(sum);
            if (LID % 8 == 0 && 4 * word < width) put_block(word / 8, bad ? uintBitsToFloat(NAN_BITS) : a / 127.0, sum);
        }
    }
    return Quantized(bad ? uintBitsToFloat(NAN_BITS) : a / 127.0, group_sum(total));
}
