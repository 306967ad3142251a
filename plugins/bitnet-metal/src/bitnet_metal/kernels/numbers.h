// NaN and Inf by their bits.
inline uint size_bits(float x) { return as_type<uint>(x) & 0x7fffffffu; }  // has the order of |x|; Inf and NaN are the largest
inline bool is_bad(float x) { return size_bits(x) >= 0x7f800000u; }  // NaN or Inf
inline bool is_nan(float x) { return size_bits(x) > 0x7f800000u; }
inline float or_nan(float x, bool bad) { return bad ? as_type<float>(0x7fc00000u) : x; }
