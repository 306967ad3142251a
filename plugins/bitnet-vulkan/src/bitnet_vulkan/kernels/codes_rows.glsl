// Norm and int8 quantization of TILE_T rows at a time, as codes.glsl does for one. ROW_WAVES subgroups have a row, in
// registers. The codes are in shared memory, by row and then by the planes of 2-bit codes: columns 16 (2 s + h) .. of
// block b are at [(row * 4 + s) * PLANE + 2 b + h]; scales and halves (blocks.glsl) of the planes of block b at
// [row * BLOCKS + b]. MOST_WIDTH: the padded columns of the widest row. POOL: minimum size, if the including kernel
// uses the memory otherwise too.
const uint ROW_WAVES = GROUP / WAVE / TILE_T, ROW_ITEMS = GROUP / TILE_T;
const uint ROW_WORDS = (MOST_WIDTH / 4 + ROW_ITEMS - 1) / ROW_ITEMS;
const bool BLOCKED = BLOCK != 0;
const uint PLANE = MOST_WIDTH / 64 + 2, BLOCKS = BLOCKED ? (MOST_WIDTH + 127) / 128 : 1;
shared uvec4 q_shared[TILE_T * 4 * PLANE > POOL ? TILE_T * 4 * PLANE : POOL];
shared vec4 act_scales[TILE_T * BLOCKS], act_halves[TILE_T * BLOCKS];
shared float row_scales[TILE_T];  // NaN for a row with a value that is not finite

// Returns the sum of a row's codes.
int row_sum(uint row) {
    int sum = 0;
    [[unroll]] for (uint i = 0; i < ROW_WAVES; i++) sum += group_totals[row * ROW_WAVES + i];
    return sum;
}

// Stores four codes and, with block scales, the scale and sum of 32 columns; all invocations must call it.
void put_codes(uint row, uint word, uint width, ivec4 code, float scale) {
    uvec4 bytes = uvec4(code) & 255u;
    uint place = (row * 4 + word / 8 % 4) * PLANE + word / 32 * 2 + word / 4 % 2;
    if (4 * word < width) q_shared[place][word % 4] = bytes.x | bytes.y << 8 | bytes.z << 16 | bytes.w << 24;
    if (!BLOCKED) return;
    int sum = sum_of_8(code.x + code.y + code.z + code.w);
    uint block = word / 8;
    if (LID % 8 != 0 || 4 * word >= width) return;
    act_scales[row * BLOCKS + block / 4][block % 4] = scale * PLANES[block % 4];
    act_halves[row * BLOCKS + block / 4][block % 4] = 0.5 * scale * float(sum);
}

// Quantizes the rows. x: words at, at + ROW_ITEMS, ... of row LID / ROW_ITEMS, with at = LID % ROW_ITEMS, zero past its
// end; g: of gamma. Codes, scales and sums are visible to the whole group afterwards.
void quantize_rows(vec4 x[ROW_WORDS], vec4 g[ROW_WORDS], uint norm, uint columns, uint width, float eps) {
    const uint words = (width / 4 + ROW_ITEMS - 1) / ROW_ITEMS;
    const float least = ABLOCK == 0 ? 1e-5 : 1e-20;
    uint row = LID / ROW_ITEMS, at = LID % ROW_ITEMS;
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
    squares = sum_of_wave(squares);
    largest = max_of_wave(largest);
    if (subgroupElect()) group_found[gl_SubgroupID] = uvec2(floatBitsToUint(squares), largest);
    barrier();
    squares = 0.0;
    [[unroll]] for (uint i = 0; i < ROW_WAVES; i++) {
        uvec2 found = group_found[row * ROW_WAVES + i];
        squares += uintBitsToFloat(found.x);
        largest = max(largest, found.y);
    }
    float most = uintBitsToFloat(largest);
    bool bad = not_finite(squares) || not_finite(most);
    float inverse = norm == 1 ? 1.0 / sqrt(squares / float(columns) + eps) : 1.0;
    float a = max(most * inverse, least), factor = inverse * (127.0 / a);
    int total = 0;  // at most 128 * width
    [[unroll]] for (uint i = 0; i < ROW_WORDS; i++) {
        if (i >= words) break;
        if (ABLOCK != 0) {
            a = max(uintBitsToFloat(largest_of[i]) * inverse, least);
            factor = inverse * (127.0 / a);
        }
        ivec4 code = bad ? ivec4(0) : ivec4(clamp(roundEven(x[i] * factor), -128.0, 127.0));
        total += code.x + code.y + code.z + code.w;
        put_codes(row, at + i * ROW_ITEMS, width, code, bad ? uintBitsToFloat(NAN_BITS) : a / 127.0);
    }
    total = sum_of_wave(total);
    if (subgroupElect()) group_totals[gl_SubgroupID] = total;
    if (at == 0) row_scales[row] = bad ? uintBitsToFloat(NAN_BITS) : a / 127.0;
    barrier();
}
