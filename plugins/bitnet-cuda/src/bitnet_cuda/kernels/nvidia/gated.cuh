// Returns act(gate) * up: act(g) = max(g, 0)^2 (ACT 0) or g / (1 + exp(-g)) (ACT 1).
__device__ inline float gated(float gate, float up) {
    float r = fmaxf(gate, 0.0f), act = ACT == 0 ? r * r : quotient(gate, 1.0f + expf(-gate));
    return is_nan(gate) ? gate : act * up;  // fmaxf drops NaN
}
