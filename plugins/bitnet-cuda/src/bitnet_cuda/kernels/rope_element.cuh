// Rotary embedding of one element of a head; element 2j, 2j + 1 (INTERLEAVED 1) or j, j + D/2 are a pair.
struct alignas(8) CosSin {
    float cos, sin;
};

__device__ inline float element(const float* x, const CosSin* angles, bool rotate, u32 d, u32 head_dim) {
    if (d >= head_dim) return 0.0f;
    if (!rotate) return x[d];
    u32 half = head_dim / 2, pair = INTERLEAVED ? d / 2 : d % half;
    u32 a = INTERLEAVED ? 2 * pair : pair, b = INTERLEAVED ? a + 1 : a + half;
    CosSin c = angles[pair];
    return d == a ? x[a] * c.cos - x[b] * c.sin : x[b] * c.cos + x[a] * c.sin;
}
