// Ternary codes: a word of w holds four columns in each of four planes 32 columns apart; plane s is its bits 6 - 2s.

fn plane(words: vec4<u32>, s: u32) -> vec4<u32> { // codes 0..2, four in a word
    return (words >> vec4<u32>(6u - 2u * s)) & vec4<u32>(0x03030303u);
}

fn signs(codes: vec4<u32>) -> vec4<u32> { // codes - 1 as bytes; no byte carries into the next
    return (codes + vec4<u32>(0x7f7f7f7fu)) ^ vec4<u32>(0x80808080u);
}

fn plus_dot16(sum: i32, a: vec4<u32>, b: vec4<u32>) -> i32 { // one sum after the other: GPUs fuse multiply and add
    return dot4I8Packed(a.w, b.w) + (dot4I8Packed(a.z, b.z) + (dot4I8Packed(a.y, b.y) + (dot4I8Packed(a.x, b.x) + sum)));
}

fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 { return plus_dot16(0, a, b); }
