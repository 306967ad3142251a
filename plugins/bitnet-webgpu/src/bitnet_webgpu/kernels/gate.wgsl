// act(gate) * up: act(g) = max(g, 0)^2 (ACT 0) or g / (1 + exp(-g)) (ACT 1); NaN stays NaN.

fn gated(gate: f32, up: f32) -> f32 {
    if (ACT == 1u) { return gate / (1.0 + exp(-gate)) * up; }
    let relu = select(gate, 0.0, bitcast<i32>(gate) < 0 && !is_nan(gate));
    return relu * relu * up;
}
