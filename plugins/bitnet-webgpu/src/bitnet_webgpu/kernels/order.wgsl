// f32 as integers in the same order; NaN, of any sign, is the largest, and -0 equals 0.

const NAN_ORDER = 0xffffffffu;

fn ordered(x: f32) -> u32 {
    if (is_nan(x)) { return NAN_ORDER; }
    let bits = select(bitcast<u32>(x), 0u, size_bits(x) == 0u);
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

fn from_order(order: u32) -> f32 {
    return bitcast<f32>(select(~order, order & 0x7fffffffu, order >= 0x80000000u));
}
