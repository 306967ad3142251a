// Int8 copy of w f16[outs, width]: scale[n] = max|w[n]| / 127, codes[n, k] = round(w[n, k] / scale[n]), error[n] >=
// |w[n] - scale[n] codes[n]| + 3 (width + 64) 2^-24 |w[n]| and at most 1.1 times that. A row with a NaN or Inf gets
// scale NaN and codes 0. codes i8[outs, width]; scale, error f32[outs]. LANES work-items share a row. Group: TILE_N
// rows.
#define MARGIN 1.01f  // exceeds the error of the f32 sums below

KERNEL pack_head(ARGUMENTS) {
    PARAMETERS
    AT_IN(uchar, w);
    AT_OUT(char, codes);
    AT_OUT(float, scale);
    AT_OUT(float, error);
    __local float scratch[GROUP];
    const uint lane = get_local_id(0) % LANES, n = get_group_id(0) * TILE_N + get_local_id(0) / LANES;
    const ulong first = (ulong)min(n, outs - 1) * width;
    __global const half *row = (__global const half *)w + first;
    float largest = 0;
    for (uint i = lane; i < width; i += LANES) {
        const float v = fabs(vload_half(i, row));
        largest = v <= FLT_MAX ? fmax(largest, v) : INFINITY;
    }
    largest = lanes_max(largest, scratch, LANES);
    const bool good = largest <= FLT_MAX;
    const float step = largest / 127.0f, inverse = good && step > 0 ? 1.0f / step : 0.0f;
    float rest = 0, squares = 0;
    for (uint i = lane; i < width; i += LANES) {
        const float v = good ? vload_half(i, row) : 0.0f;
        const float code = clamp(rint(v * inverse), -127.0f, 127.0f), apart = fma(-step, code, v);
        if (n < outs) codes[first + i] = (char)convert_int(good ? code : 0.0f);
        rest = fma(apart, apart, rest);
        squares = fma(v, v, squares);
    }
    rest = lanes_sum(good ? rest : 0.0f, scratch, LANES);
    squares = lanes_sum(squares, scratch, LANES);
    if (lane != 0 || n >= outs) return;
    scale[n] = good ? step : NAN;
    error[n] = (sqrt(rest) + 3.0f * (float)(width + 64) * 0x1p-24f * sqrt(squares)) * MARGIN;
}
