// A head in one simdgroup: lane i holds pairs i, i + 32, ...; pair j is elements (j, j + D / 2), or (2j, 2j + 1) if
// INTERLEAVED is 1.
struct Head {
    float2 pairs[PAIRS_A_LANE];
};

inline uint first_of(uint j) { return INTERLEAVED == 1 ? 2 * j : j; }
inline uint second_of(uint j) { return INTERLEAVED == 1 ? 2 * j + 1 : j + PAIRS; }

inline Head plain(device const float *x, uint lane) {
    Head head;
    for (uint i = 0; i < PAIRS_HERE; i++) {
        uint j = lane + 32 * i;
        head.pairs[i] = j < PAIRS ? float2(x[first_of(j)], x[second_of(j)]) : float2(0.0f);
    }
    return head;
}

// Normed if QKNORM is 1 (NaN if the mean square is not finite), then (a, b) -> (a cos - b sin, b cos + a sin).
inline Head turned(device const float *x, device const float *gamma, device const float2 *angles, float eps, uint lane) {
    Head head = plain(x, lane);
    float sum = 0.0f, factor = 1.0f;
    for (uint i = 0; i < PAIRS_HERE; i++) sum += dot(head.pairs[i], head.pairs[i]);
    if (QKNORM == 1) {
        float mean = simd_sum(sum) / float(HEAD_DIM);
        factor = or_nan(1.0f / sqrt(mean + eps), is_bad(mean));
    }
    for (uint i = 0; i < PAIRS_HERE; i++) {
        uint j = lane + 32 * i;
        if (j >= PAIRS) continue;
        float a = head.pairs[i].x, b = head.pairs[i].y;
        if (QKNORM == 1) {
            a = a * factor * gamma[first_of(j)];
            b = b * factor * gamma[second_of(j)];
        }
        float2 angle = angles[j];
        head.pairs[i] = float2(a * angle.x - b * angle.y, b * angle.x + a * angle.y);
    }
    return head;
}

inline float inverse_of(thread const Head &head, thread float &absmax) {  // of the int8 scale; used by KV 2 alone
    uint most = 0;
    for (uint i = 0; i < PAIRS_HERE; i++) most = max(most, max(size_bits(head.pairs[i].x), size_bits(head.pairs[i].y)));
    absmax = as_type<float>(simd_max(most));
    return absmax > 0.0f ? 127.0f / absmax : 0.0f;
}

template <class Floats>
inline void write_floats(thread const Head &head, Floats to, uint lane) {
    for (uint i = 0; i < PAIRS_HERE; i++) {
        uint j = lane + 32 * i;
        if (j >= PAIRS) continue;
        to[first_of(j)] = head.pairs[i].x;
        to[second_of(j)] = head.pairs[i].y;
    }
}

template <class Halves>
inline void write_halves(thread const Head &head, Halves to, uint lane) {
    for (uint i = 0; i < PAIRS_HERE; i++) {
        uint j = lane + 32 * i;
        if (j >= PAIRS) continue;
        to[first_of(j)] = half(head.pairs[i].x);
        to[second_of(j)] = half(head.pairs[i].y);
    }
}

template <class Codes>
inline void write_codes(thread const Head &head, Codes to, float inverse, uint lane) {
    for (uint i = 0; i < PAIRS_HERE; i++) {
        uint j = lane + 32 * i;
        if (j >= PAIRS) continue;
        to[first_of(j)] = char(rint(head.pairs[i].x * inverse));
        to[second_of(j)] = char(rint(head.pairs[i].y * inverse));
    }
    if (HEAD_DIM % 4 == 2 && lane < 2) to[HEAD_DIM + lane] = 0;
}

inline void store(thread const Head &head, device uint *row, uint lane) {
    if (KV == 0) write_floats(head, (device float *)row, lane);
    if (KV == 1) write_halves(head, (device half *)row, lane);
    if (KV != 2) return;
    float absmax = 0.0f, inverse = inverse_of(head, absmax);
    if (lane == 0) row[0] = as_type<uint>(absmax / 127.0f);
    write_codes(head, (device char *)(row + 1), inverse, lane);
}

inline void store(thread const Head &head, threadgroup uint *row, uint lane) {
    if (KV == 0) write_floats(head, (threadgroup float *)row, lane);
    if (KV == 1) write_halves(head, (threadgroup half *)row, lane);
    if (KV != 2) return;
    float absmax = 0.0f, inverse = inverse_of(head, absmax);
    if (lane == 0) row[0] = as_type<uint>(absmax / 127.0f);
    write_codes(head, (threadgroup char *)(row + 1), inverse, lane);
}
