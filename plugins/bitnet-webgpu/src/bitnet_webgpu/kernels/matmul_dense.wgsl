// y[l, y_first + n] = sum_k x[l, k] w[n, k] in f32: 32 threads share 4 matrix rows, TILE_N = GROUP / 8 rows per
// workgroup. FAST: rows of f16 or bf16 are whole vec4 of eight elements. x f32[rows, width]; w[outs, width] of DTYPE; y
// f32[rows, y_stride].
#include "dense.wgsl"
#include "reduce.wgsl"
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

var<workgroup> shares: array<vec4<f32>, GROUP>;

fn table_word(i: u32) -> u32 { return w[i / 4u][i % 4u]; }

fn pair(word: u32) -> vec2<f32> {
    if (DTYPE == 1u) { return unpack2x16float(word); }
    return vec2<f32>(bitcast<f32>(word << 16u), bitcast<f32>(word & 0xffff0000u));
}

fn dot8(v: vec4<u32>, a: vec4<f32>, b: vec4<f32>) -> f32 {
    return dot(vec4<f32>(pair(v.x), pair(v.y)), a) + dot(vec4<f32>(pair(v.z), pair(v.w)), b);
}

fn x_at(i: u32) -> f32 { return x[i / 4u][i % 4u]; }

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = group.x * TILE_N + thread / 32u * 4u;
    let last = p.outs - 1u;
    let n = min(vec4<u32>(first, first + 1u, first + 2u, first + 3u), vec4<u32>(last));
    let row = group.y * p.width;
    var sum = vec4<f32>(0.0);
    if (FAST == 1u) {
        let at = n * vec4<u32>(p.width / 8u);
        for (var i = thread % 32u; i < p.width / 8u; i += 32u) {
            let v0 = w[at.x + i];
            let v1 = w[at.y + i];
            let v2 = w[at.z + i];
            let v3 = w[at.w + i];
            let a = x[row / 4u + 2u * i];
            let b = x[row / 4u + 2u * i + 1u];
            sum += vec4<f32>(dot8(v0, a, b), dot8(v1, a, b), dot8(v2, a, b), dot8(v3, a, b));
        }
    } else {
        for (var k = thread % 32u; k < p.width; k += 32u) {
            sum += x_at(row + k) * vec4<f32>(element(n.x, k, p.width), element(n.y, k, p.width), element(n.z, k, p.width),
                                          element(n.w, k, p.width));
        }
    }
    shares[thread] = vec4<f32>(near_sum(sum.x, 32u), near_sum(sum.y, 32u), near_sum(sum.z, 32u), near_sum(sum.w, 32u));
    workgroupBarrier();
    let out = group.x * TILE_N + thread;
    if (thread < TILE_N && out < p.outs) {
        var total = 0.0;
        for (var lane = 0u; lane < 32u; lane += NEAR) { total += shares[thread / 4u * 32u + lane][thread % 4u]; }
        y[group.y * p.y_stride + p.y_first + out] = total;
    }
}
