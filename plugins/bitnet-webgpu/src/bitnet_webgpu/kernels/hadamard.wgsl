// The Walsh-Hadamard transform of HADAMARD columns in workgroup memory, H[i, j] = (-1)^popcount(i & j), without its
// factor: each step adds and subtracts elements `distance` apart, then doubles the distance. Starts and ends with a
// barrier.

var<workgroup> v: array<f32, HADAMARD>;

fn hadamard(thread: u32) {
    var distance = 1u;
    for (; 4u * distance <= HADAMARD; distance *= 4u) {
        workgroupBarrier();
        for (var i = thread; i < HADAMARD / 4u; i += GROUP) {
            let at = 3u * (i & ~(distance - 1u)) + i;
            let a = v[at] + v[at + distance];
            let b = v[at] - v[at + distance];
            let c = v[at + 2u * distance] + v[at + 3u * distance];
            let d = v[at + 2u * distance] - v[at + 3u * distance];
            v[at] = a + c;
            v[at + distance] = b + d;
            v[at + 2u * distance] = a - c;
            v[at + 3u * distance] = b - d;
        }
    }
    workgroupBarrier();
    for (var i = thread; distance < HADAMARD && i < HADAMARD / 2u; i += GROUP) { // the last distance alone
        let a = v[i];
        let b = v[i + distance];
        v[i] = a + b;
        v[i + distance] = a - b;
    }
    workgroupBarrier();
}

fn hadamard_factor() -> f32 { // 1 / sqrt(HADAMARD) of a power of two
    let log_block = firstLeadingBit(HADAMARD);
    return bitcast<f32>((127u - log_block / 2u) << 23u) * select(1.0, 0.70710678, log_block % 2u == 1u);
}
