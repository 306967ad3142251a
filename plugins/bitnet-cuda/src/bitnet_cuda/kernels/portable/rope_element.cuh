// Norm and rotary embedding of one element of a head. Pairs are (2j, 2j + 1) (INTERLEAVED 1) or (j, j + D/2).
struct alignas(8) CosSin {
    float cos, sin;
};

// A query or key head. inverse: 1 / sqrt(mean(h^2) + eps) if QKNORM is 1.
struct Head {
    const float *x, *gamma;
    float inverse;

    __device__ float operator[](u32 d) const { return QKNORM ? x[d] * inverse * gamma[d] : x[d]; }
};

// Returns the inverse from the sum of squares, NaN if that is not finite.
__device__ inline float head_inverse(float squares, u32 head_dim, float eps) {
    return not_finite(squares) ? quiet_nan() : 1.0f / sqrtf(squares / (float)head_dim + eps);
}

__device__ inline float rotated(const Head& h, const CosSin* angles, u32 d, u32 head_dim) {
    if (d >= head_dim) return 0.0f;
    u32 half = head_dim / 2, pair = INTERLEAVED ? d / 2 : d % half;
    u32 a = INTERLEAVED ? 2 * pair : pair, b = INTERLEAVED ? a + 1 : a + half;
    CosSin c = angles[pair];
    return d == a ? h[a] * c.cos - h[b] * c.sin : h[b] * c.cos + h[a] * c.sin;
}
