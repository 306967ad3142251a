// What every kernel file starts with. The compiler defines: WG (work-items of a group), the semantic and tuning
// constants of the kernel, and what the device offers: HAS_SHUFFLE, HAS_KHR_DOT, HAS_ARM_DOT, HAS_PTX.

#pragma OPENCL FP_CONTRACT OFF  // devices shall agree; fma() stands where it is meant

// IN(T, name) and OUT(T, name) in a kernel's list are bound views: a buffer name_buffer and an offset name_offset in bytes.
// sources.py writes them out, the offsets and the parameters as one struct. AT_IN and AT_OUT make `name` point at the view.
#define AT_IN(T, name) \
    __global const T *restrict name = (__global const T *)((__global const uchar *)name##_buffer + name##_offset)
#define AT_OUT(T, name) __global T *restrict name = (__global T *)((__global uchar *)name##_buffer + name##_offset)
// A view that other groups write during the launch.
#define AT_SHARED(T, name) __global T *name = (__global T *)((__global uchar *)name##_buffer + name##_offset)

#define GROUP __attribute__((reqd_work_group_size(WG, 1, 1)))
#define UNROLL _Pragma("unroll")  // for loops over register arrays, which must not end up in memory
#define INLINE static inline __attribute__((always_inline))  // pointers to registers must not survive
#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))

#ifdef HAS_PTX
INLINE int shuffle_xor_int(int v, uint mask) {
    int r;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(r) : "r"(v), "r"(mask));
    return r;
}
INLINE float shuffle_xor_float(float v, uint mask) { return as_float(shuffle_xor_int(as_int(v), mask)); }
#define HAS_SHUFFLE 1
#elif defined(HAS_SHUFFLE)
#pragma OPENCL EXTENSION cl_khr_subgroup_shuffle : enable
#define shuffle_xor_int(v, mask) sub_group_shuffle_xor((int)(v), mask)
#define shuffle_xor_float(v, mask) sub_group_shuffle_xor((float)(v), mask)
#endif

// ---- reductions over the work-group; every work-item gets the result ----
// `scratch` is local memory of WG elements that nobody else uses from the last barrier to the next. Called by all
// work-items; ends behind a barrier.
#define ADD_OF(a, b) ((a) + (b))
#define MAX_OF(a, b) ((a) > (b) ? (a) : (b))
#if defined(HAS_PTX) && WG % 32 == 0 && WG <= 1024  // a warp first, then the warps' results
#define GROUP_REDUCE(NAME, T, OP, SHUFFLE)                                             \
    INLINE T NAME(T value, __local T *scratch) {                                       \
        const uint lid = get_local_id(0);                                              \
        for (uint mask = 16; mask > 0; mask /= 2) {                                    \
            const T other = SHUFFLE(value, mask);                                      \
            value = OP(value, other);                                                  \
        }                                                                              \
        if (lid % 32 == 0) scratch[lid / 32] = value;                                  \
        barrier(CLK_LOCAL_MEM_FENCE);                                                  \
        value = scratch[0];                                                            \
        for (uint i = 1; i < WG / 32; ++i) value = OP(value, scratch[i]);              \
        return value;                                                                  \
    }
#else
#define GROUP_REDUCE(NAME, T, OP, SHUFFLE)                                                     \
    INLINE T NAME(T value, __local T *scratch) {                                      \
        const uint lid = get_local_id(0);                                             \
        barrier(CLK_LOCAL_MEM_FENCE);                                                 \
        scratch[lid] = value;                                                         \
        for (uint width = WG; width > 1;) {                                           \
            const uint half_width = CEIL_DIV(width, 2);                               \
            barrier(CLK_LOCAL_MEM_FENCE);                                             \
            if (lid + half_width < width) {                                           \
                const T a = scratch[lid], b = scratch[lid + half_width];              \
                scratch[lid] = OP(a, b);                                              \
            }                                                                         \
            width = half_width;                                                       \
        }                                                                             \
        barrier(CLK_LOCAL_MEM_FENCE);                                                 \
        return scratch[0];                                                            \
    }
#endif
GROUP_REDUCE(group_sum, float, ADD_OF, shuffle_xor_float)
GROUP_REDUCE(group_sum_int, int, ADD_OF, shuffle_xor_int)
GROUP_REDUCE(group_max_uint, uint, MAX_OF, shuffle_xor_int)
GROUP_REDUCE(group_max, float, MAX_OF, shuffle_xor_float)  // of values that are not NaN

// The sum of one and the largest of another value, with one exchange. scratch: 2 * WG words.
INLINE void group_sum_max(float *sum, uint *most, __local float *scratch) {
#if defined(HAS_PTX) && WG % 32 == 0 && WG <= 1024
    const uint lid = get_local_id(0);
    __local uint *scratch_most = (__local uint *)scratch + WG / 32;
    for (uint mask = 16; mask > 0; mask /= 2) {
        *sum += shuffle_xor_float(*sum, mask);
        *most = max(*most, (uint)shuffle_xor_int((int)*most, mask));
    }
    if (lid % 32 == 0) {
        scratch[lid / 32] = *sum;
        scratch_most[lid / 32] = *most;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    *sum = scratch[0];
    *most = scratch_most[0];
    UNROLL
    for (uint i = 1; i < WG / 32; ++i) {
        *sum += scratch[i];
        *most = max(*most, scratch_most[i]);
    }
#else
    *sum = group_sum(*sum, scratch);
    *most = group_max_uint(*most, (__local uint *)scratch + WG);
#endif
}

// ---- reductions over LANES neighbouring work-items (a power of two that divides WG and the subgroup) ----
// All work-items call them, and all get the result of their set.
#ifdef HAS_SHUFFLE
#define LANES_REDUCE(NAME, T, OP, SHUFFLE)                                             \
    INLINE T NAME(T v, __local T *scratch, uint lanes) {                               \
        for (uint mask = lanes / 2; mask > 0; mask /= 2) {                             \
            const T other = SHUFFLE(v, mask);                                          \
            v = OP(v, other);                                                          \
        }                                                                              \
        return v;                                                                      \
    }
LANES_REDUCE(lanes_sum_int, int, ADD_OF, shuffle_xor_int)
LANES_REDUCE(lanes_sum, float, ADD_OF, shuffle_xor_float)
LANES_REDUCE(lanes_max, float, fmax, shuffle_xor_float)
#else
#define LANES_REDUCE(NAME, T, OP)                                                             \
    INLINE T NAME(T v, __local T *scratch, uint lanes) {                               \
        const uint lid = get_local_id(0);                                              \
        if (lanes == 1) return v;                                                      \
        barrier(CLK_LOCAL_MEM_FENCE);                                                  \
        scratch[lid] = v;                                                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                  \
        v = scratch[lid / lanes * lanes];                                              \
        for (uint i = 1; i < lanes; ++i) v = OP(v, scratch[lid / lanes * lanes + i]);  \
        return v;                                                                      \
    }
LANES_REDUCE(lanes_sum_int, int, ADD_OF)
LANES_REDUCE(lanes_sum, float, ADD_OF)
LANES_REDUCE(lanes_max, float, fmax)
#endif

// ---- acc + the dot product of four codes (bytes 0..3) with four signed bytes ----
#if defined(HAS_PTX)
INLINE int dot4(uint codes, uint q, int acc) {
    int r;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(codes), "r"(q), "r"(acc));
    return r;
}
#elif defined(HAS_KHR_DOT)
#pragma OPENCL EXTENSION cl_khr_integer_dot_product : enable
INLINE int dot4(uint codes, uint q, int acc) { return acc + dot_4x8packed_ss_int(codes, q); }
#elif defined(HAS_ARM_DOT)
#pragma OPENCL EXTENSION cl_arm_integer_dot_product_accumulate_int8 : enable
INLINE int dot4(uint codes, uint q, int acc) { return arm_dot_acc(as_char4(codes), as_char4(q), acc); }
#else
INLINE int dot4(uint codes, uint q, int acc) {
    const char4 a = as_char4(codes), b = as_char4(q);
    return acc + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}
#endif

// What is read now: a compiler may not put it off until it is used.
INLINE float load_now(__global const float *from) {
#ifdef HAS_PTX
    float v;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(from));
    return v;
#else
    return *from;
#endif
}

INLINE float4 load_quad(__global const float4 *from) {
#ifdef HAS_PTX
    float4 v;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from));
    return v;
#else
    return *from;
#endif
}

// The same for 16 bytes that are read only once.
INLINE uint4 load_once(__global const uint4 *from) {
#ifdef HAS_PTX
    uint4 v;
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
#else
    return *from;
#endif
}

// Codes of columns 32 * plane + byte of a 128-block, for four bytes of it: plane 0 is bits 7-6.
#define PLANE(word, plane) (((word) >> (6 - 2 * (plane))) & 0x03030303u)
// The same times 1 << IN_PLACE_SHIFT(plane), where dot4 takes bytes above 127: one instruction less.
#ifdef HAS_PTX
#define IN_PLACE(word, plane) ((word) & (0xc0c0c0c0u >> (2 * (plane))))
#define IN_PLACE_SHIFT(plane) (6 - 2 * (plane))
#else
#define IN_PLACE(word, plane) PLANE(word, plane)
#define IN_PLACE_SHIFT(plane) 0
#endif

// ---- the paged cache: byte address of one row ----
#define KV_BLOCK 64
INLINE ulong cache_row(int slot, uint head, uint n_kv_heads, uint row_bytes) {
    return (((ulong)(slot / KV_BLOCK) * n_kv_heads + head) * KV_BLOCK + slot % KV_BLOCK) * row_bytes;
}

#ifdef HAS_PTX  // there is no f16 in NVIDIA's OpenCL C, but there is in its instructions
// Two f16 as f32.
INLINE float2 halves(uint pair) {
    float2 v;
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
        : "=f"(v.x), "=f"(v.y)
        : "r"(pair));
    return v;
}
#endif

// ---- dense tables ----
#ifdef DTYPE
#if DTYPE == 0
#define TABLE_ROW_BYTES(columns) ((ulong)(columns) * 4)
#elif DTYPE == 3
#define TABLE_ROW_BYTES(columns) ((ulong)(columns) / 32 * 34)
#elif DTYPE == 4
#define TABLE_ROW_BYTES(columns) ((ulong)(columns) / 256 * 210)
#else
#define TABLE_ROW_BYTES(columns) ((ulong)(columns) * 2)
#endif

// Element i of a table row.
INLINE float table_value(__global const uchar *row, uint i) {
#if DTYPE == 0
    return ((__global const float *)row)[i];
#elif DTYPE == 1
    return vload_half(i, (__global const half *)row);
#elif DTYPE == 2
    return as_float((uint)((__global const ushort *)row)[i] << 16);
#elif DTYPE == 3
    __global const uchar *block = row + i / 32 * 34;
    return (float)as_char(block[2 + i % 32]) * vload_half(0, (__global const half *)block);
#else
    __global const uchar *block = row + i / 256 * 210;
    const uint j = i % 256, h = j / 128, quarter = j % 128 / 32, l = j % 32;
    const uint low = block[64 * h + 32 * (quarter & 1) + l];
    const uint bits = (quarter < 2 ? low & 15 : low >> 4) | ((block[128 + 32 * h + l] >> (2 * quarter)) & 3) << 4;
    const float d = vload_half(0, (__global const half *)(block + 208));
    return d * (float)as_char(block[192 + j / 16]) * (float)((int)bits - 32);
#endif
}

// Elements i..i+7 of a table row, i a multiple of 8.
INLINE float8 table_values8(__global const uchar *row, uint i) {
#if DTYPE == 0
    return vload8(0, (__global const float *)row + i);
#elif DTYPE == 1 && defined(HAS_PTX) && ALIGNED  // rows of a multiple of 8 elements: 16 bytes can be loaded at once
    const uint4 raw = *(__global const uint4 *)(row + 2 * i);
    return (float8)(halves(raw.x), halves(raw.y), halves(raw.z), halves(raw.w));
#elif DTYPE == 1
    return vload_half8(0, (__global const half *)row + i);
#elif DTYPE == 2
    return as_float8(convert_uint8(vload8(0, (__global const ushort *)row + i)) << 16);
#elif DTYPE == 3
    __global const uchar *block = row + i / 32 * 34;
    return convert_float8(vload8(0, (__global const char *)block + 2 + i % 32)) *
           vload_half(0, (__global const half *)block);
#else
    __global const uchar *block = row + i / 256 * 210;
    const uint j = i % 256, h = j / 128, quarter = j % 128 / 32, l = j % 32;
    const uchar8 low = vload8(0, block + 64 * h + 32 * (quarter & 1) + l);
    const uchar8 high = vload8(0, block + 128 + 32 * h + l) >> (uchar)(2 * quarter);
    const uchar8 bits = (quarter < 2 ? low & (uchar)15 : low >> (uchar)4) | (high & (uchar)3) << (uchar)4;
    const float d = vload_half(0, (__global const half *)(block + 208));
    return convert_float8(convert_char8(bits) - (char)32) * (d * (float)as_char(block[192 + j / 16]));
#endif
}
#endif

// ---- int8 absmax quantization of one row by one group, after an optional norm ----
// a = max(max|y|, 1e-5), q = rint(y * (127 / a)), which is within +-127, scale = a / 127, qsum = sum q; a row with a value
// that is not finite gets scale NaN and zeros. Needs: VALUE(i), VALUE16(i) (elements i..i+15), t, width, stride, eps,
// gamma, q, scale, qsum, scratch, scratch_max, scratch_int.
#if WG == 1  // a CPU: vectors of 16 by hand, as sums of floats are not reordered by compilers
#if defined(NORM) && NORM
#define NORM_SUM(i) { const float v = VALUE(i); sum = fma(v, v, sum); }
#define NORMED(i) (VALUE(i) * inverse * gamma[i])
#define NORMED16(i) (VALUE16(i) * inverse * vload16(0, gamma + (i)))
#define ROW_INVERSE                                                             \
    float sum = 0;                                                              \
    SUM_OF_SQUARES                                                              \
    float mean = group_sum(sum, scratch) / (float)width;                        \
    if (!isfinite(mean)) mean = NAN;                                            \
    const float inverse = 1.0f / sqrt(mean + eps);
#else
#define NORMED(i) VALUE(i)
#define NORMED16(i) VALUE16(i)
#define ROW_INVERSE
#endif
#define SUM_OF_SQUARES                                                          \
    float16 sums = 0;                                                           \
    for (uint i = 0; i + 16 <= width; i += 16) {                                \
        const float16 v = VALUE16(i);                                           \
        sums = fma(v, v, sums);                                                 \
    }                                                                           \
    for (uint i = 0; i < 16; ++i) sum += ((float *)&sums)[i];                   \
    for (uint i = width / 16 * 16; i < width; ++i) NORM_SUM(i)
#define LARGEST                                                                 \
    float16 most = 0;                                                           \
    int16 fine = -1;                                                            \
    for (uint i = 0; i + 16 <= width; i += 16) {                                \
        const float16 y = fabs(NORMED16(i));                                    \
        fine &= y <= FLT_MAX;                                                   \
        most = select(most, y, y > most);                                       \
    }                                                                           \
    for (uint i = 0; i < 16; ++i)                                               \
        largest = ((int *)&fine)[i] ? fmax(largest, ((float *)&most)[i]) : INFINITY;  \
    for (uint i = width / 16 * 16; i < width; ++i) LARGER(i)
#define CODES                                                                   \
    int16 totals = 0;                                                           \
    uint done = 0;                                                              \
    if (good)                                                                   \
        for (; done + 16 <= width; done += 16) {                                \
            const int16 code = convert_int16(rint(NORMED16(done) * up_scale));  \
            totals += code;                                                     \
            vstore16(convert_char16(code), 0, q + (ulong)t * stride + done);    \
        }                                                                       \
    for (uint i = 0; i < 16; ++i) total += ((int *)&totals)[i];                 \
    for (uint i = done; i < stride; ++i) CODE(i)
#define LARGER(i)                                                               \
    {                                                                           \
        const float y = fabs(NORMED(i));                                        \
        largest = y <= FLT_MAX ? fmax(largest, y) : INFINITY;                   \
    }
#define CODE(i)                                                                 \
    {                                                                           \
        const int code = i < width && good ? convert_int(rint(NORMED(i) * up_scale)) : 0;  \
        q[(ulong)t * stride + i] = (char)code;                                  \
        total += code;                                                          \
    }
#define QUANTIZE_ROW                                                            \
    const uint lid = get_local_id(0);                                           \
    ROW_INVERSE                                                                 \
    float largest = 1e-5f;                                                      \
    LARGEST                                                                     \
    largest = group_max(largest, scratch_max);                                      \
    const bool good = largest <= FLT_MAX;                                       \
    const float up_scale = good ? 127.0f / largest : 0.0f;                      \
    int total = 0;                                                              \
    CODES                                                                       \
    total = group_sum_int(total, scratch_int);                                  \
    if (lid == 0) {                                                             \
        scale[t] = good ? largest / 127.0f : NAN;                               \
        qsum[t] = total;                                                        \
    }
#else  // a GPU: each work-item keeps its SHARE of the row in registers
#if defined(NORM) && NORM
#define NORM_SHARE                                                              \
    float gains[SHARE];                                                         \
    float sum = 0;                                                              \
    UNROLL                                                                      \
    for (uint k = 0; k < SHARE; ++k) gains[k] = gamma[min(lid + k * WG, width - 1)];  \
    UNROLL                                                                      \
    for (uint k = 0; k < SHARE; ++k) sum = fma(held[k], held[k], sum);          \
    float mean = group_sum(sum, scratch) / (float)width;                        \
    if (!isfinite(mean)) mean = NAN;                                            \
    const float inverse = 1.0f / sqrt(mean + eps);                              \
    UNROLL                                                                      \
    for (uint k = 0; k < SHARE; ++k) held[k] = held[k] * inverse * gains[k];
#else
#define NORM_SHARE
#endif
#define QUANTIZE_ROW                                                            \
    const uint lid = get_local_id(0);                                           \
    float held[SHARE];                                                          \
    UNROLL                                                                      \
    for (uint k = 0; k < SHARE; ++k) held[k] = lid + k * WG < width ? VALUE(lid + k * WG) : 0.0f;  \
    NORM_SHARE                                                                  \
    float largest = 1e-5f;                                                      \
    UNROLL                                                                      \
    for (uint k = 0; k < SHARE; ++k) {                                          \
        const float y = fabs(held[k]);                                          \
        largest = y <= FLT_MAX ? fmax(largest, y) : INFINITY;                   \
    }                                                                           \
    largest = group_max(largest, scratch_max);                                      \
    const bool good = largest <= FLT_MAX;                                       \
    const float up_scale = good ? 127.0f / largest : 0.0f;                      \
    int total = 0;                                                              \
    UNROLL                                                                      \
    for (uint k = 0; k < SHARE; ++k) {                                          \
        const int code = good ? convert_int(rint(held[k] * up_scale)) : 0;      \
        if (lid + k * WG < width) {                                             \
            q[(ulong)t * stride + lid + k * WG] = (char)code;                   \
            total += code;                                                      \
        }                                                                       \
    }                                                                           \
    for (uint i = width + lid; i < stride; i += WG) q[(ulong)t * stride + i] = 0;  \
    total = group_sum_int(total, scratch_int);                                  \
    if (lid == 0) {                                                             \
        scale[t] = good ? largest / 127.0f : NAN;                               \
        qsum[t] = total;                                                        \
    }
#endif
