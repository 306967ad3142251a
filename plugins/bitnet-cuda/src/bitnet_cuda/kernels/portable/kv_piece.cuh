// Eight elements of a cache row as stored (KV 0 f32, 1 f16, 2 int8 after an f32 scale). Lane l of the LANES lanes that
// share a row has elements 8 l .. 8 l + 7 of DIM; elements past the end are zeros.
struct Piece {
#if KV == 0
    u32 word[8];
#elif KV == 1
    u32 word[4];
#else
    u32 word[2], scale;
#endif
};

__device__ inline Piece load_piece(const u32* row, u32 first) {
    Piece p;
#if KV < 2
    const int count = KV == 0 ? 8 : 4;
    const u32* from = row + first / (8 / count);
    if (DIM % 8 == 0) {
#pragma unroll
        for (int i = 0; i < count / 4; i++) {
            Words four = first < DIM ? ((const Words*)from)[i] : Words{0, 0, 0, 0};
            p.word[4 * i] = four.x, p.word[4 * i + 1] = four.y, p.word[4 * i + 2] = four.z, p.word[4 * i + 3] = four.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < count; i++) p.word[i] = first + i * (8 / count) < DIM ? from[i] : 0;
    }
#else
    p.scale = row[0];
    for (int i = 0; i < 2; i++) p.word[i] = first + 4 * i < DIM ? row[1 + first / 4 + i] : 0;
#endif
    return p;
}

__device__ inline void unpack(const Piece& p, float* x) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
#if KV == 0
        x[i] = __uint_as_float(p.word[i]);
#elif KV == 1
        x[i] = half_to_float((u16)(p.word[i / 2] >> (16 * (i % 2))));
#else
        x[i] = (float)(signed char)(p.word[i / 4] >> (8 * (i % 4))) * __uint_as_float(p.scale);
#endif
    }
}

// All lanes of a warp must call this.
__device__ inline Piece pack(const float* x) {
    Piece p;
#if KV == 0
    for (int i = 0; i < 8; i++) p.word[i] = __float_as_uint(x[i]);
#elif KV == 1
    for (int i = 0; i < 4; i++) p.word[i] = float_to_half(x[2 * i]) | (u32)float_to_half(x[2 * i + 1]) << 16;
#else
    float largest = 0.0f;
    for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(x[i]));
    for (int d = LANES / 2; d > 0; d >>= 1) largest = fmaxf(largest, shuffle_xor(largest, d));
    float factor = largest > 0.0f ? 127.0f / largest : 0.0f;
    p.scale = __float_as_uint(largest / 127.0f);
    p.word[0] = p.word[1] = 0;
    for (int i = 0; i < 8; i++) p.word[i / 4] |= ((u32)(int)rintf(x[i] * factor) & 255u) << (8 * (i % 4));
#endif
    return p;
}

__device__ inline void store_piece(const Piece& p, u32* row, u32 first) {
#if KV < 2
    const int count = KV == 0 ? 8 : 4;
    for (int i = 0; i < count; i++)
        if (first + i * (8 / count) < DIM) row[first / (8 / count) + i] = p.word[i];
#else
    if (first == 0) row[0] = p.scale;
    for (int i = 0; i < 2; i++)
        if (first + 4 * i < DIM) row[1 + first / 4 + i] = p.word[i];
#endif
}
