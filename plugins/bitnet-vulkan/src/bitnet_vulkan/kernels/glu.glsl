// Returns act(gate) * up in f32: act(g) = max(g, 0)^2 (ACT 0) or g / (1 + exp(-g)) (ACT 1).
float glu(float g, float u) {
    if (is_nan(g)) return g;  // max() may drop NaN
    float r = max(g, 0.0);
    return (ACT == 0 ? r * r : g / (1.0 + exp(-g))) * u;
}
vec4 glu4(vec4 g, vec4 u) { return vec4(glu(g.x, u.x), glu(g.y, u.y), glu(g.z, u.z), glu(g.w, u.w)); }
