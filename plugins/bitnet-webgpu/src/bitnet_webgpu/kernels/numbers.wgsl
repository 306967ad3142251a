// NaN and Inf by their bits, since WGSL lets an implementation assume that there are none.

const NAN_BITS = 0x7fc00000u;
const INF_BITS = 0x7f800000u;

fn size_bits(x: f32) -> u32 { // has the order of |x|; Inf and NaN are the largest
    return bitcast<u32>(x) & 0x7fffffffu;
}

fn is_bad(x: f32) -> bool { // NaN or Inf
    return size_bits(x) >= INF_BITS;
}

fn is_nan(x: f32) -> bool {
    return size_bits(x) > INF_BITS;
}

fn or_nan(x: f32, bad: bool) -> f32 {
    return bitcast<f32>(select(bitcast<u32>(x), NAN_BITS, bad));
}
