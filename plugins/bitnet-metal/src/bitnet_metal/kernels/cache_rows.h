// Cache rows of type KV (0 f32, 1 f16, 2 int8 with a scale) as 32-bit words: ROW_WORDS of them, HEAD_DIM elements.
constant constexpr uint PAIRS_A_LANE = 8;  // heads of at most 512 elements
#define PAIRS (HEAD_DIM / 2)
#define PAIRS_HERE ((PAIRS + 31) / 32)  // pairs of a lane

inline ulong cache_row(uint slot, uint head, uint heads) {  // index of the first word
    return ((ulong(slot / 64) * heads + head) * 64 + slot % 64) * ROW_WORDS;
}

template <class Words>
inline float2 pair_of(Words row, uint j) {  // elements 2j, 2j + 1
    if (KV == 0) return float2(as_type<float>(uint(row[2 * j])), as_type<float>(uint(row[2 * j + 1])));
    if (KV == 1) return float2(as_type<half2>(uint(row[j])));
    char4 codes = as_type<char4>(uint(row[1 + j / 2]));
    float2 pair = j % 2 == 0 ? float2(float(codes.x), float(codes.y)) : float2(float(codes.z), float(codes.w));
    return pair * as_type<float>(uint(row[0]));
}
