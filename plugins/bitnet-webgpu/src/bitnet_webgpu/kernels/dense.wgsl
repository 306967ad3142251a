// Elements of dense tables of type DTYPE, read through table_word(i), the i-th 32-bit word of the table.

fn byte_at(i: u32) -> u32 {
    return (table_word(i / 4u) >> (i % 4u * 8u)) & 0xffu;
}

fn signed_byte_at(i: u32) -> f32 {
    return f32(bitcast<i32>(byte_at(i) << 24u) >> 24u);
}

fn pair_at(i: u32) -> u32 { // 16 bits at an even byte
    return (table_word(i / 4u) >> (i % 4u * 8u)) & 0xffffu;
}

fn half_at(i: u32) -> f32 {
    return unpack2x16float(pair_at(i)).x;
}

fn q6_k(block: u32, k: u32) -> f32 { // element k of the 256 in the 210 bytes at `block`
    let part = k / 128u;
    let quarter = k % 128u / 32u;
    let low = byte_at(block + part * 64u + quarter % 2u * 32u + k % 32u) >> (quarter / 2u * 4u);
    let high = byte_at(block + 128u + part * 32u + k % 32u) >> (2u * quarter);
    let code = f32((low & 15u) | ((high & 3u) << 4u)) - 32.0;
    return half_at(block + 208u) * signed_byte_at(block + 192u + k / 16u) * code;
}

fn element(row: u32, k: u32, columns: u32) -> f32 {
    switch DTYPE {
        case 0u: { return bitcast<f32>(table_word(row * columns + k)); }
        case 1u: { return half_at(2u * (row * columns + k)); }
        case 2u: { return bitcast<f32>(pair_at(2u * (row * columns + k)) << 16u); }
        case 3u: {
            let block = (row * (columns / 32u) + k / 32u) * 34u;
            return half_at(block) * signed_byte_at(block + 2u + k % 32u);
        }
        default: { return q6_k((row * (columns / 256u) + k / 256u) * 210u, k % 256u); }
    }
}
