// Norm and int8 quantization of one row per workgroup; the including kernel defines float raw(uint row, uint column).
// a = max(max|y|, 1e-5), q = clip(round_half_even(y * (127 / a)), -128, 127), scale = a / 127.
void quantize_row(uint row, uint width, uint stride, float eps) {
    float squares = 0.0, bad = 0.0;
    for (uint k = LID; k < width; k += GROUP) {
        float v = raw(row, k);
        squares += v * v;
        if (not_finite(v)) bad = 1.0;
    }
    bad = group_max(bad);
    float inverse = 1.0;
    if (NORM == 1) {
        squares = group_sum(squares);
        if (not_finite(squares)) bad = 1.0;
        inverse = 1.0 / sqrt(squares / float(width) + eps);
    }
    float largest = 0.0;
    for (uint k = LID; k < width; k += GROUP) {
        float y = raw(row, k);
        if (NORM == 1) y = y * inverse * gamma[k];
        if (not_finite(y)) bad = 1.0;
        largest = max(largest, abs(y));
    }
    bad = group_max(bad);
    float a = max(group_max(largest), 1e-5);
    float factor = 127.0 / a;
    float total = 0.0;  // at most 128 * width: exact in f32 up to 2^17 columns
    for (uint word = LID; word < stride / 4; word += GROUP) {
        uint packed = 0;
        for (uint i = 0; i < 4; i++) {
            uint k = 4 * word + i;
            if (k >= width || bad > 0.0) continue;
            float y = raw(row, k);
            if (NORM == 1) y = y * inverse * gamma[k];
            int code = int(clamp(roundEven(y * factor), -128.0, 127.0));
            total += float(code);
            packed |= (uint(code) & 255u) << (8 * i);
        }
        q[row * (stride / 4) + word] = packed;
    }
    total = group_sum(total);
    if (LID == 0) {
        scale[row] = bad > 0.0 ? uintBitsToFloat(NAN_BITS) : a / 127.0;
        qsum[row] = int(total);
    }
}
