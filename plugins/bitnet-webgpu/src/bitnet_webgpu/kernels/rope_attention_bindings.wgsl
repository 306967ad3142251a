// Operands of rope_attention: qkv f32[rows, (n_heads + 2 n_kv_heads) head_dim]; step i32[rows, 4];
// rope f32[positions, head_dim / 2, 2]; q_gamma, k_gamma f32[head_dim]; k_cache, v_cache: cache rows;
// tables i32[sequences, max_blocks]; out f32[rows, n_heads head_dim].
@group(0) @binding(0) var<storage, read> qkv: array<f32>;
@group(0) @binding(1) var<storage, read> step: array<vec4<i32>>;
@group(0) @binding(2) var<storage, read> rope: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> q_gamma: array<f32>;
@group(0) @binding(4) var<storage, read> k_gamma: array<f32>;
@group(0) @binding(5) var<storage, read_write> k_cache: array<u32>;
@group(0) @binding(6) var<storage, read_write> v_cache: array<u32>;
@group(0) @binding(7) var<storage, read> tables: array<i32>;
@group(0) @binding(8) var<storage, read_write> out: array<f32>;

// The row's own key and value come from here, since the cache is being written meanwhile.
var<workgroup> own_key: array<u32, ROW_WORDS>;
var<workgroup> own_value: array<u32, ROW_WORDS>;
var<workgroup> own_position: u32;

fn key_now(words: vec3<u32>, j: u32, position: u32) -> vec3<u32> {
    let i = word_index(j);
    let own = vec3<u32>(own_key[i], select(0u, own_key[min(i + 1u, ROW_WORDS - 1u)], KV == 0u), own_key[0]);
    return select(words, own, vec3<bool>(position == own_position)); // no branch, since loads would wait for it
}

fn value_now(words: vec3<u32>, j: u32, position: u32) -> vec3<u32> {
    let i = word_index(j);
    let own = vec3<u32>(own_value[i], select(0u, own_value[min(i + 1u, ROW_WORDS - 1u)], KV == 0u), own_value[0]);
    return select(words, own, vec3<bool>(position == own_position));
}

fn kv_head_of(group: vec3<u32>) -> u32 { return group.x * TILE_N / (p.n_heads / p.n_kv_heads); }

// Loads the queries, and the row's key and value; the first workgroup of their head also stores these.
fn take_row(row: vec4<i32>, kv_head: u32, group: vec3<u32>, thread: u32) {
    let shared_by = p.n_heads / p.n_kv_heads;
    let position = u32(max(row.y, 0));
    let start = group.y * (p.n_heads + 2u * p.n_kv_heads) * HEAD_DIM;
    let key = start + (p.n_heads + kv_head) * HEAD_DIM;
    let used = row.y >= 0 && row.z >= 0;
    let stores = group.z == 0u && group.x * TILE_N % shared_by == 0u && used;
    let to = cache_row(u32(max(row.z, 0)), kv_head, p.n_kv_heads);
    if (thread == 0u) { own_position = position; }
    for (var h = 0u; h < TILE_N; h += 1u) {
        let at = start + (group.x * TILE_N + h) * HEAD_DIM;
        let factor = head_factor(at, p.eps, thread);
        for (var j = thread; j < PAIRS; j += GROUP) {
            queries[h * PAIRS + j] = vec2<f32>(turned(at, 2u * j, true, position, factor),
                                               turned(at, 2u * j + 1u, true, position, factor));
        }
    }
    let value = key + p.n_kv_heads * HEAD_DIM; // loaded here, so that its loads are in flight with the others
    let first_value = qkv[value + min(thread, HEAD_DIM - 1u)];
    let second_value = qkv[value + min(thread + GROUP, HEAD_DIM - 1u)];
    let factor = head_factor(key, p.eps, thread);
    for (var d = thread; d < HEAD_DIM; d += GROUP) { head[d] = turned(key, d, false, position, factor); }
    workgroupBarrier();
    var absmax = head_scale(thread);
    for (var i = thread; i < ROW_WORDS; i += GROUP) {
        own_key[i] = encoded(i, absmax);
        if (stores) { k_cache[to + i] = own_key[i]; }
    }
    workgroupBarrier();
    if (thread < HEAD_DIM) { head[thread] = first_value; }
    if (thread + GROUP < HEAD_DIM) { head[thread + GROUP] = second_value; }
    workgroupBarrier();
    absmax = head_scale(thread);
    for (var i = thread; i < ROW_WORDS; i += GROUP) {
        own_value[i] = encoded(i, absmax);
        if (stores) { v_cache[to + i] = own_value[i]; }
    }
    workgroupBarrier();
}
