// Elements of a head at qkv[base], normed (QKNORM) and rotated. The including kernel has qkv, rope, q_gamma, k_gamma
// and p.head_dim, p.eps.
const uint QUERY = 0, KEY = 1, VALUE = 2;

// Returns 1 / sqrt(mean + eps) from the sum of squares of a head.
float inverse_of(float squares) {
    return not_finite(squares) ? uintBitsToFloat(NAN_BITS) : 1.0 / sqrt(squares / float(p.head_dim) + p.eps);
}

float normed(uint base, uint kind, uint d, float inverse) {
    float v = qkv[base + d];
    return QKNORM == 0 || kind == VALUE ? v : v * inverse * (kind == QUERY ? q_gamma[d] : k_gamma[d]);
}

float element(uint base, uint position, uint kind, uint d, float inverse) {
    if (d >= p.head_dim) return 0.0;
    if (kind == VALUE) return qkv[base + d];
    uint half_ = p.head_dim / 2;
    uint pair = INTERLEAVED == 1 ? d / 2 : d % half_;
    uint a = INTERLEAVED == 1 ? 2 * pair : pair, b = INTERLEAVED == 1 ? a + 1 : a + half_;
    vec2 cs = rope[position * half_ + pair];
    float first = normed(base, kind, a, inverse), second = normed(base, kind, b, inverse);
    return d == a ? first * cs.x - second * cs.y : second * cs.x + first * cs.y;
}
