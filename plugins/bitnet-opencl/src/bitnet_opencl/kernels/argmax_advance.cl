// Greedy token of each row (lowest index of the largest logit, -1 if any is NaN) into history and step; the row moves on
// by one position, or becomes unused where it cannot.
// logits f32[rows, vocab]; index i32[rows]; tables i32[sequences, max_blocks]; step i32[*, 4]; history i32[*, ring + 1].
// One group per row.
GROUP __kernel void argmax_advance(IN(float, logits), IN(int, index), IN(int, tables), OUT(int, step),
                                   OUT(int, history), const uint rows, const uint vocab, const uint max_blocks,
                                   const uint ring) {
    AT_IN(float, logits);
    AT_IN(int, index);
    AT_IN(int, tables);
    AT_OUT(int, step);
    AT_OUT(int, history);
    __local float best[WG];
    __local uint where[WG];
    const uint l = get_group_id(0), lid = get_local_id(0);
    __global const float *row = logits + (ulong)l * vocab;
    float value = -INFINITY;
    uint at = 0xffffffffu;
    bool bad = false;
    for (uint i = lid; i < vocab; i += WG) {
        const float v = row[i];
        bad |= isnan(v);
        if (v > value || at == 0xffffffffu) {
            value = v;
            at = i;
        }
    }
    best[lid] = bad ? NAN : value;
    where[lid] = at;
    for (uint width = WG; width > 1; width = CEIL_DIV(width, 2)) {
        const uint other = lid + CEIL_DIV(width, 2);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (other < width && !isnan(best[lid])) {
            const float v = best[other];
            if (isnan(v) || v > best[lid] || (v == best[lid] && where[other] < where[lid])) {
                best[lid] = v;
                where[lid] = where[other];
            }
        }
    }
    if (lid != 0) return;
    const int r = index[l];
    __global int *state = step + 4 * r;
    if (state[1] < 0) return;
    const int token = isnan(best[0]) ? -1 : (int)where[0];  // a NaN beats everything
    __global int *past = history + (ulong)r * (ring + 1);
    const int count = past[0] + 1;
    past[0] = count;
    if (count <= (int)ring) past[count] = token;
    const int position = state[1] + 1;
    const uint block = (uint)position / KV_BLOCK;
    const int entry = block < max_blocks ? tables[(ulong)state[3] * max_blocks + block] : -1;
    const bool alive = token >= 0 && entry >= 0;
    state[0] = token;
    state[1] = alive ? position : -1;
    state[2] = alive ? entry * KV_BLOCK + position % KV_BLOCK : -1;
}
