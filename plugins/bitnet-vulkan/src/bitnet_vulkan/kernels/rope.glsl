// Element d of the head at qkv[base], rotated for a position or not; the including kernel has qkv, rope and p.head_dim.
float element(uint base, uint position, bool rotate, uint d) {
    if (d >= p.head_dim) return 0.0;
    if (!rotate) return qkv[base + d];
    uint half_ = p.head_dim / 2;
    uint pair = INTERLEAVED == 1 ? d / 2 : d % half_;
    uint a = INTERLEAVED == 1 ? 2 * pair : pair, b = INTERLEAVED == 1 ? a + 1 : a + half_;
    vec2 cs = rope[position * half_ + pair];
    return d == a ? qkv[base + a] * cs.x - qkv[base + b] * cs.y : qkv[base + b] * cs.x + qkv[base + a] * cs.y;
}
