// Operands of the ternary products. Rows are whole 128-column blocks, so they are read 16 bytes (vec4) at a time.
@group(0) @binding(0) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> wscale: array<f32>;
@group(0) @binding(2) var<storage, read> q: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> scale: array<f32>;
@group(0) @binding(4) var<storage, read> qsum: array<i32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

fn store(row: u32, out: u32, value: f32) {
    let at = row * p.y_stride + p.y_first + out;
    if (ADD == 1u) { y[at] += value; } else { y[at] = value; }
}
