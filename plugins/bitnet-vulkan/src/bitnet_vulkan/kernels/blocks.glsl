// Block scales: weights have one per BLOCK columns of a row, activations one per 32 columns.
const uint SCALE_SPAN = BLOCK == 0 ? 128 : BLOCK;
const vec4 PLANES = vec4(1.0 / 64.0, 1.0 / 16.0, 1.0 / 4.0, 1.0);

// Scales of a chunk of weights (half of each plane of 128 columns): of planes 0 and 1, and of planes 2 and 3.
#define UNITS(BUFFER, ROW, CHUNK, WIDE_)                                                                            \
    (BLOCK == 64 ? vec2(BUFFER[(ROW) * ((WIDE_) / 64) + (CHUNK) / 2 * 2], BUFFER[(ROW) * ((WIDE_) / 64) + (CHUNK) / 2 * 2 + 1]) \
                 : vec2(BUFFER[(ROW) * (((WIDE_) + SCALE_SPAN - 1) / SCALE_SPAN) + (CHUNK) / 2 * 128 / SCALE_SPAN]))

// Returns the contribution of a chunk to a sum. dots: its masked planes times codes, multiples of 64, 16, 4, 1; scales:
// of the activations of each plane, times PLANES; halves: scale * sum of the codes of each plane / 2, since two chunks
// share them.
float of_chunk(ivec4 dots, vec4 scales, vec4 halves, vec2 units) {
    vec4 parts = vec4(dots) * scales - halves;
    return units.x * (parts.x + parts.y) + units.y * (parts.z + parts.w);
}
