// ids[l, i], values[l, i] = the k largest logits of row l in descending order, equal ones by ascending index, among the
// allowed ones if MASK is 1 (padded with -1 and -Inf); NaN counts as the largest. total[l] = (m, log(sum exp(logit -
// m))) over all allowed logits, m their largest; NaN if one is NaN.
// logits f32[rows, stride]; mask i32[rows, ceil(vocab / 32)]; ids i32[rows, k]; values f32[rows, k]; total f32[rows,
// 2]; k at most 256. SPLITS == 1: one group per row.
// Every logit has a 64-bit key, unique in its row: its order among floats, then its complemented index. The smallest of
// the k largest keys is found 8 bits at a time by counting; then k keys are gathered and sorted by their ranks.
#define MOST 256
#if MASK
#define ALLOWED(i) (allowed[(i) / 32] >> ((i) % 32) & 1)
#else
#define ALLOWED(i) true
#endif

INLINE ulong key_of(float v, uint i) {
    const uint bits = as_uint(v == 0.0f ? 0.0f : v);  // -0 and +0 are equal
    const uint order = isnan(v) ? 0xffffffffu : (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
    return (ulong)order << 32 | (0xffffffffu - i);
}

KERNEL top_k(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, logits);
    AT_IN(int, mask);
    AT_OUT(int, ids);
    AT_OUT(float, values);
    AT_OUT(float, total);
    __local uint counts[256], chosen, left, taken;
    __local ulong keys[MOST];
    __local float scratch[GROUP], scratch_max[GROUP];
    __local int scratch_int[GROUP], scratch_bad[GROUP];
    const uint l = get_group_id(0), lid = get_local_id(0);
    __global const float *row = logits + (ulong)l * stride;
    __global const int *allowed = mask + (ulong)l * CEIL_DIV(vocab, 32);
    float most = -INFINITY, sum = 0;
    int count = 0, bad = 0;
    for (uint i = lid; i < vocab; i += GROUP)
        if (ALLOWED(i)) {
            ++count;
            bad |= isnan(row[i]);
            most = fmax(most, row[i]);
        }
    most = group_max(most, scratch_max);
    count = group_sum_int(count, scratch_int);
    bad = group_sum_int(bad, scratch_bad);
    for (uint i = lid; i < vocab; i += GROUP)
        if (ALLOWED(i)) sum += exp(row[i] - most);
    sum = group_sum(sum, scratch);
    if (lid == 0) {
        total[2 * l] = bad ? NAN : most;
        total[2 * l + 1] = bad ? NAN : log(sum);
    }
    const uint found = min(k, (uint)count);
    for (uint i = found + lid; i < k; i += GROUP) {
        ids[(ulong)l * k + i] = -1;
        values[(ulong)l * k + i] = -INFINITY;
    }
    ulong prefix = 0;
    uint wanted = found;
    uint shift = 64;
    bool exact = found == 0;
    while (!exact) {
        shift -= 8;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = lid; i < 256; i += GROUP) counts[i] = 0;
        if (lid == 0) taken = 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = lid; i < vocab; i += GROUP) {
            if (!ALLOWED(i)) continue;
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
    for (uint i = lid; found > 0 && i < vocab; i += GROUP) {
        if (!ALLOWED(i)) continue;
        const ulong key = key_of(row[i], i);
        if (key >> shift >= prefix) {
            const uint at = atomic_inc(&taken);
            if (at < MOST) keys[at] = key;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = lid; i < found; i += GROUP) {
        uint rank = 0;
        for (uint j = 0; j < found; ++j) rank += keys[j] > keys[i];
        const uint id = 0xffffffffu - (uint)keys[i];
        ids[(ulong)l * k + rank] = (int)id;
        values[(ulong)l * k + rank] = row[id];
    }
}
