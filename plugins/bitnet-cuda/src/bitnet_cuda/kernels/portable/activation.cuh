// act(g) = max(g, 0)^2 (ACT 0), g / (1 + exp(-g)) (ACT 1) or 1 / (1 + exp(-g)) (ACT 2); NaN stays NaN.
__device__ inline float activation(float g) {
    if (ACT) return quotient(ACT == 1 ? g : 1.0f, 1.0f + expf(-g));
    float r = is_nan(g) ? g : fmaxf(g, 0.0f);  // fmaxf drops NaN
    return r * r;
}
