// Cache rows of type KV (0 f32, 1 f16, 2 int8 with a scale) as 32-bit words: ROW_WORDS of them, HEAD_DIM elements.

const PAIRS = HEAD_DIM / 2u;

fn cache_row(slot: u32, head: u32, heads: u32) -> u32 { // returns the index of the first word
    return ((slot / 64u * heads + head) * 64u + slot % 64u) * ROW_WORDS;
}

fn word_index(j: u32) -> u32 { // returns the index of the word with elements 2j, 2j + 1
    if (KV == 0u) { return 2u * j; }
    if (KV == 1u) { return j; }
    return 1u + j / 2u;
}

fn decoded(first: u32, second: u32, scale: u32, j: u32) -> vec2<f32> {
    if (KV == 0u) { return vec2<f32>(bitcast<f32>(first), bitcast<f32>(second)); }
    if (KV == 1u) { return unpack2x16float(first); }
    let pair = bitcast<vec2<i32>>(vec2<u32>(first) << (vec2<u32>(24u, 16u) - vec2<u32>(j % 2u * 16u))) >> vec2<u32>(24u);
    return vec2<f32>(pair) * bitcast<f32>(scale);
}

fn half_bits(x: f32) -> u32 { // rounds to nearest even, which pack2x16float does not guarantee
    let sign = (bitcast<u32>(x) >> 16u) & 0x8000u;
    let a = size_bits(x);
    if (a > INF_BITS) { return sign | 0x7e00u; }
    if (a >= 0x477ff000u) { return sign | 0x7c00u; }
    if (a >= 0x38800000u) { return sign | ((a - 0x38000000u + 0xfffu + ((a >> 13u) & 1u)) >> 13u); }
    return sign | u32(round(bitcast<f32>(a) * 16777216.0));
}
