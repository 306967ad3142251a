// m[t, n] = act(gate) * up of the ternary products of x[t], normed (NORM 1) and quantized in every workgroup, with both
// halves of w = [gate | up].
// x f32[rows, columns]; gamma f32[columns]; w u8[2 outs, width / 4]; wscale f32[2 outs] or [2 outs, ceil(width / BLOCK)];
// m f32[rows, outs].
// use numbers reduce quantize codes scales norm_product gate
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gamma: array<f32>;
@group(0) @binding(2) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> wscale: array<f32>;
@group(0) @binding(4) var<storage, read_write> m: array<f32>;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y;
    let slot = thread / LANES; // TILE_N of gate, then TILE_N of up
    let out = min(group.x * TILE_N + slot % TILE_N, p.outs - 1u) + slot / TILE_N * p.outs;
    let codes = load(out, thread % LANES);
    let total = prepare(row, thread);
    multiply(codes, out, thread);
    workgroupBarrier();
    let n = group.x * TILE_N + thread;
    if (thread < TILE_N && n < p.outs) {
        m[row * p.outs + n] = gated(product(thread, n, total), product(thread + TILE_N, n + p.outs, total));
    }
}
