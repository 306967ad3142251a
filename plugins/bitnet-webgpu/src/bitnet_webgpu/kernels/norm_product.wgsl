// A product for one row whose activations every workgroup norms and quantizes into its own memory. WIDTH padded
// columns; a thread norms every GROUP-th vec4 of the row, so that neighbours load neighbouring addresses. LANES threads
// share a matrix row, each takes every LANES-th vec4 of its codes. These are loaded before the norm, so that loads and
// norm overlap. They are named instead of in an array: not every compiler keeps an array in registers.

const FOURS = WIDTH / 4u; // vec4 of the row
const EACH = (FOURS + GROUP - 1u) / GROUP; // of a thread
const VECTORS = WIDTH / 64u; // vec4 of a matrix row's codes
const STEPS = (VECTORS + LANES - 1u) / LANES;
const SIGNED = BLOCK != 0u; // otherwise the sum of the activations is subtracted
const SCALES = 1u + min(ABLOCK, 32u) / 32u * (WIDTH / 32u);

var<workgroup> activations: array<u32, FOURS>; // four columns each: [plane][vec4 of a matrix row][word]
var<workgroup> activation_scales: array<f32, SCALES>;
var<workgroup> exact: array<i32, GROUP>;
var<workgroup> shares: array<f32, GROUP>;

fn weight_scale(out: u32, i: u32) -> f32 { return wscale[out * ((WIDTH + SPAN - 1u) / SPAN) + i]; }
fn activation_scale(row: u32, i: u32) -> f32 { return activation_scales[i]; }

// Of this thread's columns of the row, times gamma: the squares and the largest value.
var<private> squares: f32;
var<private> most: u32;

fn four(i: u32) -> vec4<f32> {
    let last = (p.columns - 1u) / 4u;
    let inside = vec4<u32>(4u * i, 4u * i + 1u, 4u * i + 2u, 4u * i + 3u) < vec4<u32>(p.columns);
    var z = select(vec4<f32>(0.0), x[min(i, last)], inside);
    if (NORM == 1u) {
        squares += dot(z, z);
        z *= select(vec4<f32>(0.0), gamma[min(i, last)], inside);
    }
    most = max(most, largest_bits(z));
    return z;
}

fn quantize(z: vec4<f32>, i: u32, found: Row, thread: u32) -> i32 { // returns the sum of the codes of vec4 i
    var absmax = found.absmax;
    if (ABLOCK != 0u) {
        workgroupBarrier();
        absmax = absmax_of(block_bits(largest_bits(z), 4u, thread), found.factor);
    }
    let codes = codes_of(z, found, absmax);
    if (i < FOURS) {
        let plane = i / 8u % 4u;
        let vector = i / 32u * 2u + i / 4u % 2u;
        activations[4u * (plane * VECTORS + vector) + i % 4u] = word_of(codes);
        if (ABLOCK != 0u && i % 8u == 0u) { activation_scales[i / 8u] = or_nan(absmax / 127.0, found.bad); }
    }
    return sum_of(codes);
}

fn prepare(thread: u32) -> i32 { // returns the sum of all codes
    var z: array<vec4<f32>, EACH>;
    for (var j = 0u; j < EACH; j += 1u) { z[j] = four(thread + j * GROUP); }
    let found = row_of(squares, most, p.columns, p.eps, thread);
    if (ABLOCK == 0u && thread == 0u) { activation_scales[0] = or_nan(found.absmax / 127.0, found.bad); }
    var sum = 0;
    for (var j = 0u; j < EACH; j += 1u) { sum += quantize(z[j], thread + j * GROUP, found, thread); }
    return group_sum_exact(sum, thread); // its barriers also separate writing and reading the activations
}

fn activation_vector(i: u32) -> vec4<u32> {
    return vec4<u32>(activations[4u * i], activations[4u * i + 1u], activations[4u * i + 2u], activations[4u * i + 3u]);
}

struct Codes {
    a: vec4<u32>, b: vec4<u32>, c: vec4<u32>, d: vec4<u32>, e: vec4<u32>, f: vec4<u32>, g: vec4<u32>, h: vec4<u32>
}

fn one(out: u32, lane: u32, j: u32) -> vec4<u32> {
    if (j < STEPS && lane + j * LANES < VECTORS) { return w[out * VECTORS + lane + j * LANES]; }
    return vec4<u32>(0u);
}

fn load(out: u32, lane: u32) -> Codes {
    return Codes(one(out, lane, 0u), one(out, lane, 1u), one(out, lane, 2u), one(out, lane, 3u), one(out, lane, 4u),
                 one(out, lane, 5u), one(out, lane, 6u), one(out, lane, 7u));
}

struct Share { exact: vec4<i32>, scaled: f32 } // exact: 1, 16, 4 and 1 times the sums of the planes

fn with_dot(before: Share, codes: vec4<u32>, out: u32, lane: u32, j: u32) -> Share {
    let i = lane + j * LANES;
    if (j >= STEPS || i >= VECTORS) { return before; }
    let q0 = activation_vector(i);
    let q1 = activation_vector(VECTORS + i);
    let q2 = activation_vector(2u * VECTORS + i);
    let q3 = activation_vector(3u * VECTORS + i);
    var share = before;
    if (SIGNED) {
        let dots = vec4<i32>(dot16(signs(plane(codes, 0u)), q0), dot16(signs(plane(codes, 1u)), q1),
                             dot16(signs(plane(codes, 2u)), q2), dot16(signs(plane(codes, 3u)), q3));
        share.scaled += scaled(dots, 0u, out, i / 2u);
    } else { // planes 1 and 2 are not shifted within their bytes
        share.exact.x = plus_dot16(share.exact.x, plane(codes, 0u), q0);
        share.exact.y = plus_dot16(share.exact.y, codes & vec4<u32>(0x30303030u), q1);
        share.exact.z = plus_dot16(share.exact.z, codes & vec4<u32>(0x0c0c0c0cu), q2);
        share.exact.w = plus_dot16(share.exact.w, codes & vec4<u32>(0x03030303u), q3);
    }
    return share;
}

// Returns the product with one matrix row in the first of the LANES threads that share it. total: the sum of all
// activations.
fn product(codes: Codes, out: u32, unit: f32, total: i32, thread: u32) -> f32 {
    let lane = thread % LANES;
    var share = with_dot(Share(vec4<i32>(0), 0.0), codes.a, out, lane, 0u);
    share = with_dot(share, codes.b, out, lane, 1u);
    share = with_dot(share, codes.c, out, lane, 2u);
    share = with_dot(share, codes.d, out, lane, 3u);
    share = with_dot(share, codes.e, out, lane, 4u);
    share = with_dot(share, codes.f, out, lane, 5u);
    share = with_dot(share, codes.g, out, lane, 6u);
    share = with_dot(share, codes.h, out, lane, 7u);
    if (SIGNED) {
        let sum = lanes_sum(share.scaled, thread);
        return select(sum, sum * activation_scales[0], ABLOCK == 0u);
    }
    let sum = lanes_sum_exact(share.exact.x + (share.exact.y >> 4u) + (share.exact.z >> 2u) + share.exact.w, thread);
    return f32(sum - total) * activation_scales[0] * unit;
}

fn lanes_sum(value: f32, thread: u32) -> f32 {
    let near = near_sum(value, LANES);
    if (NEAR >= LANES) { return near; }
    workgroupBarrier();
    shares[thread] = near;
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < LANES; i += NEAR) { sum += shares[thread / LANES * LANES + i]; }
    return sum;
}

fn lanes_sum_exact(value: i32, thread: u32) -> i32 {
    let near = near_sum_exact(value, LANES);
    if (NEAR >= LANES) { return near; }
    workgroupBarrier();
    exact[thread] = near;
    workgroupBarrier();
    var sum = 0;
    for (var i = 0u; i < LANES; i += NEAR) { sum += exact[thread / LANES * LANES + i]; }
    return sum;
}
