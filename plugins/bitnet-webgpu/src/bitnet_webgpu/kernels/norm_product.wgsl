// A product for one row whose activations every workgroup norms and quantizes for itself, into workgroup memory.
// WIDTH padded columns; LANES threads share a matrix row, each takes every LANES-th vec4 of its codes. These are loaded
// before the norm, so that memory works meanwhile.

const VECTORS = WIDTH / 64u;
const STEPS = (VECTORS + LANES - 1u) / LANES;
const SIGNED = BLOCK != 0u; // else the sum of the activations is subtracted
const SCALES = 1u + ABLOCK / 32u * (WIDTH / 32u);

var<workgroup> activations: array<u32, WIDTH / 4u>; // [plane][word of the vec4][vec4]: neighbours read neighbours
var<workgroup> activation_scales: array<f32, SCALES>;
var<workgroup> sizes: array<f32, GROUP>;
var<workgroup> exact: array<i32, GROUP>;
var<workgroup> shares: array<f32, GROUP>;

fn value(row: u32, k: u32) -> f32 { return x[row * p.columns + k]; }
fn weight_scale(out: u32, i: u32) -> f32 { return wscale[out * ((WIDTH + SPAN - 1u) / SPAN) + i]; }
fn activation_scale(row: u32, i: u32) -> f32 { return activation_scales[i]; }

fn prepare(row: u32, thread: u32) -> i32 { // gives the sum of all codes
    let found = row_of(row, p.columns, p.eps, thread);
    if (ABLOCK == 0u && thread == 0u) { activation_scales[0] = or_nan(found.absmax / 127.0, found.bad); }
    let eight = thread / 8u * 8u;
    var sum = 0;
    for (var first = 0u; first < WIDTH / 4u; first += GROUP) {
        let i = first + thread;
        let y = four(row, 4u * i, p.columns, found.factor);
        var absmax = found.absmax;
        if (ABLOCK == 32u) {
            let size = abs(y);
            sizes[thread] = max(max(size.x, size.y), max(size.z, size.w));
            workgroupBarrier();
            absmax = least_absmax();
            for (var j = 0u; j < 8u; j += 1u) { absmax = max(absmax, sizes[eight + j]); }
            workgroupBarrier();
        }
        var codes = vec4<i32>(0);
        if (!found.bad) { codes = codes_of(y, 127.0 / absmax); }
        if (i < WIDTH / 4u) {
            activations[(i % 32u / 8u * 4u + i % 4u) * VECTORS + i / 32u * 2u + i % 8u / 4u] = word_of(codes);
            if (ABLOCK == 32u && thread == eight) { activation_scales[i / 8u] = or_nan(absmax / 127.0, found.bad); }
        }
        sum += sum_of(codes);
    }
    return group_sum_exact(sum, thread); // its barriers also stand between writing and reading the activations
}

// A thread's vec4s, by name and not in an array: not every compiler keeps an array in registers.
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

fn plane_dot(codes: vec4<u32>, s: u32, i: u32) -> i32 {
    var c = plane(codes, s);
    if (SIGNED) { c = signs(c); }
    let at = 4u * s * VECTORS + i;
    return dot16(c, vec4<u32>(activations[at], activations[at + VECTORS], activations[at + 2u * VECTORS],
                              activations[at + 3u * VECTORS]));
}

struct Share { exact: i32, scaled: f32 }

fn with_dot(before: Share, codes: vec4<u32>, out: u32, lane: u32, j: u32) -> Share {
    let i = lane + j * LANES;
    var share = before;
    if (j < STEPS && i < VECTORS) {
        let dots = vec4<i32>(plane_dot(codes, 0u, i), plane_dot(codes, 1u, i), plane_dot(codes, 2u, i), plane_dot(codes, 3u, i));
        if (SIGNED) { share.scaled += scaled(dots, 0u, out, i / 2u); } else { share.exact += sum_of(dots); }
    }
    return share;
}

fn multiply(codes: Codes, out: u32, thread: u32) { // a thread's share of one matrix row
    let lane = thread % LANES;
    var share = with_dot(Share(0, 0.0), codes.a, out, lane, 0u);
    share = with_dot(share, codes.b, out, lane, 1u);
    share = with_dot(share, codes.c, out, lane, 2u);
    share = with_dot(share, codes.d, out, lane, 3u);
    share = with_dot(share, codes.e, out, lane, 4u);
    share = with_dot(share, codes.f, out, lane, 5u);
    share = with_dot(share, codes.g, out, lane, 6u);
    share = with_dot(share, codes.h, out, lane, 7u);
    exact[thread] = share.exact;
    shares[thread] = share.scaled;
}

fn product(slot: u32, out: u32, total: i32) -> f32 { // of the LANES threads that share a matrix row
    var sum = -total;
    var share = 0.0;
    for (var lane = 0u; lane < LANES; lane += 1u) {
        sum += exact[slot * LANES + lane];
        share += shares[slot * LANES + lane];
    }
    if (!SIGNED) { return f32(sum) * activation_scales[0] * wscale[out]; }
    return select(share, share * activation_scales[0], ABLOCK == 0u);
}
