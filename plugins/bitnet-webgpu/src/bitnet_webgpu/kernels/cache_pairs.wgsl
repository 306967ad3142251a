// Pairs of elements of cached keys and values: the words of the cache that hold a pair, which a thread can load long
// before it uses them, and the pair.

fn key_words(row: u32, j: u32) -> vec3<u32> { // pair j of the key whose cache row starts at `row`
    let i = row + word_index(j);
    if (KV == 0u) { return vec3<u32>(k_cache[i], k_cache[i + 1u], 0u); }
    if (KV == 1u) { return vec3<u32>(k_cache[i], 0u, 0u); }
    return vec3<u32>(k_cache[i], 0u, k_cache[row]);
}

fn value_words(row: u32, j: u32) -> vec3<u32> {
    let i = row + word_index(j);
    if (KV == 0u) { return vec3<u32>(v_cache[i], v_cache[i + 1u], 0u); }
    if (KV == 1u) { return vec3<u32>(v_cache[i], 0u, 0u); }
    return vec3<u32>(v_cache[i], 0u, v_cache[row]);
}

fn pair_of(words: vec3<u32>, j: u32) -> vec2<f32> { return decoded(words.x, words.y, words.z, j); }

fn row_at(sequence: u32, kv_head: u32, position: u32) -> u32 {
    let slot = u32(tables[sequence * p.max_blocks + position / 64u]) * 64u + position % 64u;
    return cache_row(slot, kv_head, p.n_kv_heads);
}
