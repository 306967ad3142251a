// ids[l, i], values[l, i] = the k largest logits of row l in falling order, equal ones by rising index; NaN counts as the
// largest. logits f32[rows, vocab]; ids i32[rows, k]; values f32[rows, k]; k at most 256. One group per row.
// Every logit has a 64-bit key, unique in its row: its order among floats, then its index from the end. The smallest key
// that belongs to the k largest is found 8 bits at a time by counting; then k keys are taken and sorted by their ranks.
#define MOST 256

INLINE ulong key_of(float v, uint i) {
    const uint bits = as_uint(v == 0.0f ? 0.0f : v);  // -0 and +0 are equal
    const uint order = isnan(v) ? 0xffffffffu : (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
    return (ulong)order << 32 | (0xffffffffu - i);
}

GROUP __kernel void top_k(IN(float, logits), OUT(int, ids), OUT(float, values), const uint rows, const uint vocab,
                          const uint k) {
    AT_IN(float, logits);
    AT_OUT(int, ids);
    AT_OUT(float, values);
    __local uint counts[256], chosen, left, taken;
    __local ulong keys[MOST];
    const uint l = get_group_id(0), lid = get_local_id(0);
    __global const float *row = logits + (ulong)l * vocab;
    ulong prefix = 0;
    uint wanted = k;
    uint shift = 64;
    bool exact = false;
    while (!exact) {
        shift -= 8;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = lid; i < 256; i += WG) counts[i] = 0;
        if (lid == 0) taken = 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = lid; i < vocab; i += WG) {
            const ulong key = key_of(row[i], i);
            if (shift == 56 || key >> (shift + 8) == prefix) atomic_inc(&counts[(key >> shift) & 255]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lid == 0) {
            uint bin = 255, above = 0;
            while (above + counts[bin] < wanted) above += counts[bin--];
            chosen = bin;
            left = wanted - above;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        prefix = prefix << 8 | chosen;
        wanted = left;
        exact = counts[chosen] == wanted || shift == 0;
    }
    for (uint i = lid; i < vocab; i += WG) {
        const ulong key = key_of(row[i], i);
        if (key >> shift >= prefix) {
            const uint at = atomic_inc(&taken);
            if (at < MOST) keys[at] = key;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = lid; i < k; i += WG) {
        uint rank = 0;
        for (uint j = 0; j < k; ++j) rank += keys[j] > keys[i];
        const uint id = 0xffffffffu - (uint)keys[i];
        ids[(ulong)l * k + rank] = (int)id;
        values[(ulong)l * k + rank] = row[id];
    }
}
