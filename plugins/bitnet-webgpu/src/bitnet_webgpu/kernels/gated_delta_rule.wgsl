// For each row, in order, and head h with its query q and key k (divided by their lengths, q by sqrt(key_dim) too),
// value v, decay g = exp(rate * softplus(a + dt)) and beta = 1 / (1 + exp(-b)): S = g S; S += k (beta (v - S^T k))^T;
// result = S^T q. Rows with position < 0 produce zeros and leave all states unchanged.
// A workgroup has TILE_N columns of a head's state. A thread holds EACH keys of one column in registers while rows
// belong to one sequence. Sums over keys use S from before the row: with u = S^T k, w = S^T q and e = beta (v - g u),
// result = g w + (k . q) e, so one reduction serves both.
// qkv = [q | k | v] f32[rows, 2 n_key_heads key_dim + n_heads value_dim]; head h uses q and k of key head h %
// n_key_heads; gates = [a | b] f32[rows, 2 n_heads]; rate, dt f32[n_heads]; step i32[rows, 4]; state S f32[sequences,
// n_heads, key_dim, value_dim], zeros at position 0; result f32[rows, n_heads value_dim].
#include "softplus.wgsl"
@group(0) @binding(0) var<storage, read> qkv: array<f32>;
@group(0) @binding(1) var<storage, read> gates: array<f32>;
@group(0) @binding(2) var<storage, read> rate: array<f32>;
@group(0) @binding(3) var<storage, read> dt: array<f32>;
@group(0) @binding(4) var<storage, read> step: array<vec4<i32>>;
@group(0) @binding(5) var<storage, read_write> state: array<f32>;
@group(0) @binding(6) var<storage, read_write> result: array<f32>;

const PARTS = GROUP / TILE_N;
const KEYS = PARTS * EACH;
const LOADS = (KEYS + GROUP - 1u) / GROUP;
var<workgroup> q: array<f32, KEYS>;
var<workgroup> k: array<f32, 2u * KEYS>; // read after the row's last barrier, so the next row uses the other half
var<workgroup> sums: array<vec2<f32>, GROUP>;
var<workgroup> lengths: array<vec3<f32>, PARTS>;

struct Inputs { q: array<f32, LOADS>, k: array<f32, LOADS>, v: f32, a: f32, b: f32 }

fn inputs_of(t: u32, head: u32, n: u32, thread: u32) -> Inputs { // loads queries, keys, a value and gates of a row
    let keys = p.n_key_heads * p.key_dim;
    let mixed = t * (2u * keys + p.n_heads * p.value_dim);
    let query = mixed + head % p.n_key_heads * p.key_dim;
    var found: Inputs;
    for (var j = 0u; j < LOADS; j += 1u) {
        let i = min(thread + j * GROUP, p.key_dim - 1u);
        found.q[j] = qkv[query + i];
        found.k[j] = qkv[query + keys + i];
    }
    found.v = qkv[mixed + 2u * keys + head * p.value_dim + min(n, p.value_dim - 1u)];
    found.a = gates[t * 2u * p.n_heads + head];
    found.b = gates[(t * 2u + 1u) * p.n_heads + head];
    return found;
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let part = thread / TILE_N;
    let column = thread % TILE_N;
    let first = part * EACH;
    let head = group.x;
    let n = group.y * TILE_N + column;
    let held = select(0u, min(EACH, p.key_dim - min(first, p.key_dim)), n < p.value_dim);
    var at = 0u;
    var sequence = -1;
    var s: array<f32, EACH>;
    var next = inputs_of(0u, head, n, thread); // loaded while the row before is computed
    for (var t = 0u; t < p.rows; t += 1u) {
        let position = step[t].y;
        let used = position >= 0;
        if (used && step[t].w != sequence) {
            if (sequence >= 0) {
                for (var i = 0u; i < EACH; i += 1u) { if (i < held) { state[at + i * p.value_dim] = s[i]; } }
            }
            sequence = step[t].w;
            at = ((u32(sequence) * p.n_heads + head) * p.key_dim + first) * p.value_dim + n;
            for (var i = 0u; i < EACH; i += 1u) {
                s[i] = 0.0;
                if (position > 0 && i < held) { s[i] = state[at + i * p.value_dim]; }
            }
        }
        let key = t % 2u * KEYS;
        for (var j = 0u; j < LOADS; j += 1u) {
            let i = thread + j * GROUP;
            if (i < KEYS) {
                let there = used && i < p.key_dim;
                q[i] = select(0.0, next.q[j], there);
                k[key + i] = select(0.0, next.k[j], there);
            }
        }
        let v = next.v;
        let g = select(1.0, exp(rate[head] * softplus(next.a + dt[head])), used);
        let beta = 1.0 / (1.0 + exp(-next.b));
        workgroupBarrier();
        if (t + 1u < p.rows) { next = inputs_of(t + 1u, head, n, thread); }
        var sum = vec2<f32>();
        var products = vec3<f32>(); // q . q, k . k, k . q
        for (var i = 0u; i < EACH; i += 1u) {
            let qi = q[first + i];
            let ki = k[key + first + i];
            sum += vec2<f32>(ki, qi) * s[i];
            products += vec3<f32>(qi, ki, ki) * vec3<f32>(qi, ki, qi);
        }
        sums[thread] = sum;
        if (column == 0u) { lengths[part] = products; }
        workgroupBarrier();
        sum = sums[column];
        products = lengths[0];
        for (var i = 1u; i < PARTS; i += 1u) {
            sum += sums[i * TILE_N + column];
            products += lengths[i];
        }
        let k_scale = 1.0 / sqrt(products.y + p.eps);
        let q_scale = 1.0 / sqrt(products.x + p.eps) / sqrt(f32(p.key_dim));
        let error = select(0.0, beta * (v - g * (sum.x * k_scale)), used);
        for (var i = 0u; i < EACH; i += 1u) { s[i] = g * s[i] + k[key + first + i] * (error * k_scale); }
        if (part == 0u && n < p.value_dim) {
            let made = g * (sum.y * q_scale) + products.z * k_scale * q_scale * error;
            result[(t * p.n_heads + head) * p.value_dim + n] = select(0.0, made, used);
        }
    }
    if (sequence >= 0) {
        for (var i = 0u; i < EACH; i += 1u) { if (i < held) { state[at + i * p.value_dim] = s[i]; } }
    }
}
