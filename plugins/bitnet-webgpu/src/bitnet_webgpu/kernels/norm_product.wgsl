// A product for one row whose activations every workgroup norms and quantizes into its own memory. WIDTH padded
// columns; LANES threads share a matrix row, each takes every LANES-th vec4 of its codes. These are loaded before the
// norm, so that loads and norm overlap. Vectors are named instead of in an array: not every compiler keeps an array in
// registers.

const VECTORS = WIDTH / 64u; // vec4 of a matrix row's codes
const STEPS = (VECTORS + LANES - 1u) / LANES;
const SIGNED = BLOCK != 0u; // otherwise the sum of the activations is subtracted
const SCALES = 1u + min(ABLOCK, 32u) / 32u * (WIDTH / 32u);

var<workgroup> activations: array<vec4<u32>, WIDTH / 16u>; // 16 columns each: [plane][vec4 of a matrix row]
var<workgroup> activation_scales: array<f32, SCALES>;
var<workgroup> exact: array<i32, GROUP>;
var<workgroup> shares: array<f32, GROUP>;

fn weight_scale(out: u32, i: u32) -> f32 { return wscale[out * ((WIDTH + SPAN - 1u) / SPAN) + i]; }
fn activation_scale(row: u32, i: u32) -> f32 { return activation_scales[i]; }

// 16 columns of the row, times gamma, with their squares and their largest value.
struct Columns { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }
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

fn columns(thread: u32, j: u32) -> Columns { // a thread's j-th 16 columns
    let i = thread + j * GROUP;
    if (j * GROUP >= WIDTH / 16u) { return Columns(); }
    return Columns(four(4u * i), four(4u * i + 1u), four(4u * i + 2u), four(4u * i + 3u));
}

fn quantize(z: Columns, thread: u32, j: u32, found: Row) -> i32 { // returns the sum of their codes
    let i = thread + j * GROUP;
    if (j * GROUP >= WIDTH / 16u) { return 0; }
    var absmax = found.absmax;
    if (ABLOCK != 0u) {
        workgroupBarrier();
        let own = max(max(largest_bits(z.a), largest_bits(z.b)), max(largest_bits(z.c), largest_bits(z.d)));
        absmax = absmax_of(block_bits(own, 16u, thread), found.factor);
    }
    let a = codes_of(z.a, found, absmax);
    let b = codes_of(z.b, found, absmax);
    let c = codes_of(z.c, found, absmax);
    let d = codes_of(z.d, found, absmax);
    if (i < WIDTH / 16u) {
        activations[i % 8u / 2u * VECTORS + i / 8u * 2u + i % 2u] = vec4<u32>(word_of(a), word_of(b), word_of(c), word_of(d));
        if (ABLOCK != 0u && thread % 2u == 0u) { activation_scales[i / 2u] = or_nan(absmax / 127.0, found.bad); }
    }
    return sum_of(a + b + c + d);
}

fn prepare(thread: u32) -> i32 { // returns the sum of all codes
    let z0 = columns(thread, 0u);
    let z1 = columns(thread, 1u);
    let z2 = columns(thread, 2u);
    let z3 = columns(thread, 3u);
    let found = row_of(squares, most, p.columns, p.eps, thread);
    if (ABLOCK == 0u && thread == 0u) { activation_scales[0] = or_nan(found.absmax / 127.0, found.bad); }
    let sum = quantize(z0, thread, 0u, found) + quantize(z1, thread, 1u, found) + quantize(z2, thread, 2u, found) +
              quantize(z3, thread, 3u, found);
    return group_sum_exact(sum, thread); // its barriers also separate writing and reading the activations
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
    let q0 = activations[i];
    let q1 = activations[VECTORS + i];
    let q2 = activations[2u * VECTORS + i];
    let q3 = activations[3u * VECTORS + i];
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
