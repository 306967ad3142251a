// x[t, k] = (code[token[t] - first, k] - 1) * wscale[token[t] - first, k / BLOCK]; one thread per element.
// w u8[count, width / 4]; wscale f32[count, ceil(width / BLOCK)]; step i32[rows, 4]; x f32[rows, hidden].
@group(0) @binding(0) var<storage, read> w: array<u32>;
@group(0) @binding(1) var<storage, read> wscale: array<f32>;
@group(0) @binding(2) var<storage, read> step: array<vec4<i32>>;
@group(0) @binding(3) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let k = group.x * TILE_N + thread;
    let row = u32(step[group.y].x) - p.first;
    if (k >= p.hidden || row >= p.count) { return; }
    let word = w[row * (p.width / 16u) + k / 128u * 8u + k % 32u / 4u];
    let code = (word >> (k % 4u * 8u + 6u - k % 128u / 32u * 2u)) & 3u;
    let blocks = (p.width + BLOCK - 1u) / BLOCK;
    x[group.y * p.hidden + k] = (f32(code) - 1.0) * wscale[row * blocks + k / BLOCK];
}
