// Eight neighbouring elements of a cached key or value; the including kernel has the bindings k_cache, k_cache4, v_cache and
// v_cache4.
struct Octet { uvec4 a, b; };  // 8 elements as stored in the cache
struct Octets { float v[8]; };

Octets decode(Octet o) {
    Octets d;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        if (KV == 0) {
            d.v[i] = uintBitsToFloat(o.a[i]);
            d.v[4 + i] = uintBitsToFloat(o.b[i]);
        } else if (KV == 1) {
            vec2 pair = unpackHalf2x16(o.a[i]);
            d.v[2 * i] = pair.x;
            d.v[2 * i + 1] = pair.y;
        } else {
            d.v[i] = float(signed_byte(o.a.x, i)) * uintBitsToFloat(o.a.z);
            d.v[4 + i] = float(signed_byte(o.a.y, i)) * uintBitsToFloat(o.a.z);
        }
    }
    return d;
}

#define LOAD(NAME, CACHE, CACHE4)                                                                              \
    Octet NAME(uint word0, uint octet) {                                                                       \
        if (KV == 0) return Octet(CACHE4[word0 / 4 + 2 * octet], CACHE4[word0 / 4 + 2 * octet + 1]);           \
        if (KV == 1) return Octet(CACHE4[word0 / 4 + octet], uvec4(0));                                        \
        uint at = word0 + 1 + 2 * octet;                                                                       \
        return Octet(uvec4(CACHE[at], CACHE[at + 1], CACHE[word0], 0), uvec4(0));                              \
    }
LOAD(load_k, k_cache, k_cache4)
LOAD(load_v, v_cache, v_cache4)

#ifdef FUSED
// The newest key or value, in the format that rope_store_kv writes.
Octet encode(float v[8], float factor, float unit) {
    Octet o = Octet(uvec4(0), uvec4(0));
    [[unroll]] for (uint i = 0; i < 4; i++) {
        if (KV == 0) {
            o.a[i] = floatBitsToUint(v[i]);
            o.b[i] = floatBitsToUint(v[4 + i]);
        } else if (KV == 1) {
            o.a[i] = packHalf2x16(vec2(v[2 * i], v[2 * i + 1]));
        } else {
            o.a.x |= (uint(int(roundEven(v[i] * factor))) & 255u) << (8 * i);
            o.a.y |= (uint(int(roundEven(v[4 + i] * factor))) & 255u) << (8 * i);
            o.a.z = floatBitsToUint(unit);
        }
    }
    return o;
}

#define STORE(NAME, CACHE)                                                                                     \
    void NAME(uint word0, uint octet, Octet o) {                                                               \
        if (KV == 2) {                                                                                         \
            if (octet == 0) CACHE[word0] = o.a.z;                                                              \
            CACHE[word0 + 1 + 2 * octet] = o.a.x;                                                              \
            CACHE[word0 + 2 + 2 * octet] = o.a.y;                                                              \
            return;                                                                                            \
        }                                                                                                      \
        uint at = word0 + (KV == 0 ? 8 : 4) * octet;                                                           \
        for (uint i = 0; i < 4; i++) CACHE[at + i] = o.a[i];                                                   \
        if (KV == 0) for (uint i = 0; i < 4; i++) CACHE[at + 4 + i] = o.b[i];                                  \
    }
STORE(store_k, k_cache)
STORE(store_v, v_cache)
#endif
