// Converts exact dot products of the four planes of a 128-column block to f32 if scales differ within a row. wscale:
// those of a matrix row; scale: those of a row of activations, used if ABLOCK is not 0.
template <class Scales>
inline float scaled(float4 exact, device const float *wscale, Scales scale, uint block) {
    if (ABLOCK != 0) {
        float sum = 0.0f;
        for (uint s = 0; s < 4; s++) {
            uint i = 4 * block + s;
            sum += wscale[i * 32 / max(BLOCK, 1u)] * scale[i] * exact[s];
        }
        return sum;
    }
    if (BLOCK == 64) return wscale[2 * block] * (exact.x + exact.y) + wscale[2 * block + 1] * (exact.z + exact.w);
    return wscale[block * 128 / max(BLOCK, 1u)] * (exact.x + exact.y + exact.z + exact.w);
}
