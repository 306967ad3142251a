// y[t, y_first + n] (+)= the ternary product of x[t], normed (NORM 1) and quantized in every workgroup.
// x f32[rows, columns]; gamma f32[columns]; w u8[outs, width / 4]; wscale f32[outs] or [outs, ceil(width / BLOCK)];
// y f32[rows, y_stride].
// use numbers reduce quantize codes scales norm_product
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gamma: array<f32>;
@group(0) @binding(2) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> wscale: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y;
    let out = min(group.x * TILE_N + thread / LANES, p.outs - 1u);
    let codes = load(out, thread % LANES);
    let total = prepare(row, thread);
    multiply(codes, out, thread);
    workgroupBarrier();
    let n = group.x * TILE_N + thread;
    if (thread < TILE_N && n < p.outs) {
        let at = row * p.y_stride + p.y_first + n;
        let made = product(thread, n, total);
        if (ADD == 1u) { y[at] += made; } else { y[at] = made; }
    }
}
