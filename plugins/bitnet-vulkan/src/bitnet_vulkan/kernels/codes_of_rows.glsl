// Norm and int8 quantization of several rows by one workgroup, as codes.glsl has it for one: ROW_SHARE neighbours have a row, in their
// registers. Codes, scales and sums go to shared memory, laid out as in codes_by_plane.glsl, one row after another.
const uint PLANE = WIDTH / 64 + 2, ROW_CODES = 4 * PLANE, BLOCKS = BLOCK != 0 ? (WIDTH + 127) / 128 : 1;
const uint ROW_WORDS = (WIDTH / 4 + ROW_SHARE - 1) / ROW_SHARE, AT_ONCE = GROUP / ROW_SHARE;
shared uvec4 q_shared[ROOM * ROW_CODES];
shared vec4 act_scales[ROOM * BLOCKS], act_halves[ROOM * BLOCKS];
shared float row_scales[ROOM];
shared int row_sums[ROOM];
shared vec2 row_parts[2 * WAVES];  // sums of squares and bits of the largest, of one round and the next

vec4 columns_of(bool of_gamma, uint row, uint word, uint columns) {
    vec4 v = vec4(0.0);
    if (columns % 4 != 0) {
        for (uint e = 0; e < 4 && 4 * word + e < columns; e++)
            v[e] = of_gamma ? gamma[4 * word + e] : x[row * columns + 4 * word + e];
    } else if (4 * word < columns) {
        v = of_gamma ? gamma4[word] : x4[row * (columns / 4) + word];
    }
    return v;
}

// Every code, scale and sum is visible to the whole group afterwards.
void codes_of_rows(uint rows, uint columns, float eps) {
    const float least = ABLOCK == 0 ? 1e-5 : 1e-20;
    uint own = LID / ROW_SHARE, at = LID % ROW_SHARE;
    vec4 gain[ROW_WORDS];
    [[unroll]] for (uint i = 0; i < ROW_WORDS; i++)
        gain[i] = NORM == 1 ? columns_of(true, 0, at + i * ROW_SHARE, columns) : vec4(1.0);
    if (LID < ROOM) row_sums[LID] = 0;
    for (uint first = 0; first < rows; first += AT_ONCE) {
        uint row = first + own, largest = 0, largest_of[ROW_WORDS];
        float squares = 0.0;
        vec4 held[ROW_WORDS];
        [[unroll]] for (uint i = 0; i < ROW_WORDS; i++)
            held[i] = columns_of(false, min(row, rows - 1), at + i * ROW_SHARE, columns);
        [[unroll]] for (uint i = 0; i < ROW_WORDS; i++) {
            if (NORM == 1) {
                squares += held[i].x * held[i].x + held[i].y * held[i].y + held[i].z * held[i].z + held[i].w * held[i].w;
                held[i] *= gain[i];
            }
            uvec4 bits = floatBitsToUint(held[i]) & 0x7fffffffu;  // in the numbers' order, with NaN above all
            largest_of[i] = max(max(bits.x, bits.y), max(bits.z, bits.w));
            if (ABLOCK != 0) largest_of[i] = max_of_near(largest_of[i], ABLOCK / 4);
            largest = max(largest, largest_of[i]);
        }
        squares = sum_of_wave(squares);
        largest = max_of_wave(largest);
        uint parts = first / AT_ONCE % 2 * WAVES;
        if (subgroupElect()) row_parts[parts + gl_SubgroupID] = vec2(squares, uintBitsToFloat(largest));
        barrier();
        squares = 0.0;
        [[unroll]] for (uint i = 0; i < ROW_SHARE / WAVE; i++) {
            vec2 part = row_parts[parts + own * (ROW_SHARE / WAVE) + i];
            squares += part.x;
            largest = max(largest, floatBitsToUint(part.y));
        }
        float most = uintBitsToFloat(largest);
        bool bad = not_finite(squares) || not_finite(most), used = row < rows;
        float inverse = NORM == 1 ? 1.0 / sqrt(squares / float(columns) + eps) : 1.0;
        float a = max(most * inverse, least), factor = inverse * (127.0 / a);
        int total = 0;
        [[unroll]] for (uint i = 0; i < ROW_WORDS; i++) {
            uint word = at + i * ROW_SHARE, block = row * BLOCKS + word / 32 % BLOCKS, plane = word / 8 % 4;
            bool inside = used && 4 * word < WIDTH;
            if (ABLOCK != 0) {
                a = max(uintBitsToFloat(largest_of[i]) * inverse, least);
                factor = inverse * (127.0 / a);
            }
            ivec4 code = bad ? ivec4(0) : ivec4(clamp(roundEven(held[i] * factor), -128.0, 127.0));
            uvec4 bytes = uvec4(code) & 255u;
            int sum = code.x + code.y + code.z + code.w;
            total += sum;
            if (inside)
                q_shared[row * ROW_CODES + plane * PLANE + word / 32 * 2 + word / 4 % 2][word % 4] =
                    bytes.x | bytes.y << 8 | bytes.z << 16 | bytes.w << 24;
            if (BLOCK == 0) continue;
            sum = sum_of_8(sum);
            float scale = bad ? uintBitsToFloat(NAN_BITS) : a / 127.0;
            if (inside && word % 8 == 0) {
                act_scales[block][plane] = scale * PLANES[plane];
                act_halves[block][plane] = 0.5 * scale * float(sum);
            }
        }
        if (BLOCK != 0) continue;
        total = sum_of_wave(total);
        if (subgroupElect() && used) atomicAdd(row_sums[row], total);
        if (at == 0 && used) row_scales[row] = bad ? uintBitsToFloat(NAN_BITS) : a / 127.0;
    }
    barrier();
}
