// A thread's four neighbouring columns of a row that is quantized, and the maximum over the ABLOCK columns around them.

fn largest_bits(z: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(z) & vec4<u32>(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

var<workgroup> sizes: array<u32, GROUP>;

fn block_bits(own: u32, columns: u32, thread: u32) -> u32 { // the maximum of ABLOCK columns, `columns` per thread
    let threads = max(ABLOCK, 32u) / columns;
    sizes[thread] = own;
    workgroupBarrier(); // the caller needs another one before the next call
    var most = 0u;
    for (var i = 0u; i < threads; i += 1u) { most = max(most, sizes[thread / threads * threads + i]); }
    return most;
}

fn word_of(c: vec4<i32>) -> u32 {
    let u = bitcast<vec4<u32>>(c) & vec4<u32>(0xffu);
    return u.x | (u.y << 8u) | (u.z << 16u) | (u.w << 24u);
}

fn sum_of(c: vec4<i32>) -> i32 { return c.x + c.y + c.z + c.w; }
