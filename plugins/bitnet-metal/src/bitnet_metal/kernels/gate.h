// act(gate) * up: act(g) = max(g, 0)^2 (ACT 0) or g / (1 + exp(-g)) (ACT 1); NaN stays NaN.
inline float gated(float gate, float up) {
    if (ACT == 1) return gate / (1.0f + exp(-gate)) * up;
    float relu = as_type<int>(gate) < 0 && !is_nan(gate) ? 0.0f : gate;
    return relu * relu * up;
}
