// A thread's four neighbouring columns of a row that is quantized.

fn largest_bits(z: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(z) & vec4<u32>(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

fn word_of(c: vec4<i32>) -> u32 {
    let u = bitcast<vec4<u32>>(c) & vec4<u32>(0xffu);
    return u.x | (u.y << 8u) | (u.z << 16u) | (u.w << 24u);
}

fn sum_of(c: vec4<i32>) -> i32 { return c.x + c.y + c.z + c.w; }
