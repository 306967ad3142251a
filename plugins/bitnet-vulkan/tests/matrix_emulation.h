// Enough of GLSL to run a kernel for cooperative matrices as C++: one thread for each invocation of a workgroup, subgroups
// of 32, and matrices of which every invocation holds all; it gets the elements that others changed before they are multiplied.
#include <pthread.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

typedef unsigned uint;
template <class T, int N>
struct Vector {
    T e[N];
    T &operator[](uint i) { return e[i]; }
    const T &operator[](uint i) const { return e[i]; }
    Vector<T, 2> xy() const { return {e[0], e[1]}; }
    Vector<T, 2> zw() const { return {e[2], e[3]}; }
};
typedef Vector<float, 2> vec2;
typedef vec2 f16vec2;  // for values that are exact in f16
typedef float float16_t;
typedef Vector<float, 4> vec4;
typedef Vector<uint, 2> uvec2;
typedef Vector<uint, 4> uvec4;
typedef Vector<int, 4> ivec4;
typedef Vector<signed char, 4> i8vec4;
#define x_ e[0]
#define y_ e[1]
#define z_ e[2]
#define w_ e[3]

inline vec4 make_vec4(float a, float b, float c, float d) { return {a, b, c, d}; }
inline vec4 make_vec4(float v) { return {v, v, v, v}; }
inline vec4 make_vec4(vec2 a, vec2 b) { return {a[0], a[1], b[0], b[1]}; }
inline uvec4 make_uvec4(uint v) { return {v, v, v, v}; }
inline uvec4 make_uvec4(uvec2 a, uvec2 b) { return {a[0], a[1], b[0], b[1]}; }
inline uvec4 make_uvec4(uint a, uint b, uint c, uint d) { return {a, b, c, d}; }
inline uvec4 make_uvec4(ivec4 v) { return {(uint)v[0], (uint)v[1], (uint)v[2], (uint)v[3]}; }
inline uvec2 make_uvec2(uint v) { return {v, v}; }
inline vec2 make_vec2(float v) { return {v, v}; }
inline vec2 make_vec2(float a, float b) { return {a, b}; }
inline uvec2 make_uvec2(uint a, uint b) { return {a, b}; }
inline ivec4 make_ivec4(int a, int b, int c, int d) { return {a, b, c, d}; }
inline ivec4 make_ivec4(int v) { return {v, v, v, v}; }
inline ivec4 make_ivec4(vec4 v) { return {(int)v[0], (int)v[1], (int)v[2], (int)v[3]}; }
template <class T>
struct Scalar {
    typedef T type;
};
#define BY_ELEMENT(OP)                                                                     \
    template <class T, int N>                                                              \
    Vector<T, N> operator OP(Vector<T, N> a, Vector<T, N> b) {                             \
        for (int i = 0; i < N; i++) a.e[i] = a.e[i] OP b.e[i];                             \
        return a;                                                                          \
    }                                                                                      \
    template <class T, int N>                                                              \
    Vector<T, N> operator OP(Vector<T, N> a, typename Scalar<T>::type b) {                 \
        for (int i = 0; i < N; i++) a.e[i] = a.e[i] OP b;                                  \
        return a;                                                                          \
    }                                                                                      \
    template <class T, int N>                                                              \
    Vector<T, N> operator OP(typename Scalar<T>::type a, Vector<T, N> b) {                 \
        for (int i = 0; i < N; i++) b.e[i] = a OP b.e[i];                                  \
        return b;                                                                          \
    }                                                                                      \
    template <class T, int N, class B>                                                     \
    Vector<T, N> &operator OP##=(Vector<T, N> &a, B b) {                                   \
        return a = a OP b;                                                                 \
    }
BY_ELEMENT(+)
BY_ELEMENT(-)
BY_ELEMENT(*)
BY_ELEMENT(/)
BY_ELEMENT(&)
BY_ELEMENT(|)
BY_ELEMENT(^)
BY_ELEMENT(<<)
BY_ELEMENT(>>)
template <class T, int N>
Vector<T, N> operator~(Vector<T, N> a) {
    return a ^ ~T(0);
}
inline i8vec4 unpack8(int v) { return {(signed char)v, (signed char)(v >> 8), (signed char)(v >> 16), (signed char)(v >> 24)}; }
inline uint max(uint a, uint b) { return a > b ? a : b; }
inline uint atomicMax(uint &a, uint b) {
    uint old = __atomic_load_n(&a, __ATOMIC_RELAXED);
    while (old < b && !__atomic_compare_exchange_n(&a, &old, b, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}
inline float max(float a, float b) { return a > b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline uint min(uint a, uint b) { return a < b ? a : b; }
inline vec4 clamp(vec4 v, float a, float b) {
    for (float &e : v.e) e = std::fmin(std::fmax(e, a), b);
    return v;
}
inline float roundEven(float v) { return std::nearbyint(v); }
inline vec4 roundEven(vec4 v) {
    for (float &e : v.e) e = roundEven(e);
    return v;
}
using std::abs;
using std::exp;
using std::sqrt;
inline int bitfieldExtract(int v, int first, int bits) { return (int)((uint)v << (32 - first - bits)) >> (32 - bits); }
inline float intBitsToFloat(int v) {
    float r;
    memcpy(&r, &v, sizeof r);
    return r;
}
inline float uintBitsToFloat(uint v) { return intBitsToFloat((int)v); }
inline uint floatBitsToUint(float v) {
    uint r;
    memcpy(&r, &v, sizeof r);
    return r;
}
inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
inline vec2 fma(vec2 a, vec2 b, vec2 c) { return {std::fma(a[0], b[0], c[0]), std::fma(a[1], b[1], c[1])}; }
inline vec4 uintBitsToFloat(uvec4 v) {
    vec4 r;
    memcpy(&r, &v, sizeof r);
    return r;
}

inline uvec4 floatBitsToUint(vec4 v) {
    uvec4 r;
    memcpy(&r, &v, sizeof r);
    return r;
}

// binary16, rounded to nearest even.
inline float from_half(uint h) {
    int exponent = h >> 10 & 31, fraction = h & 1023;
    float v = exponent == 31 ? (fraction ? NAN : INFINITY)
              : exponent     ? std::ldexp(1024.0f + fraction, exponent - 25)
                             : std::ldexp((float)fraction, -24);
    return h & 0x8000 ? -v : v;
}
inline uint to_half(float v) {
    uint sign = std::signbit(v) ? 0x8000 : 0;
    v = std::fabs(v);
    if (v != v) return sign | 0x7e00;
    if (v >= 65520.0f) return sign | 0x7c00;
    int exponent = v < 6.103515625e-05f ? -14 : std::ilogb(v);
    uint steps = (uint)std::nearbyint(std::ldexp(v, 10 - exponent));  // 1024..2048, or less where subnormal
    return sign | (steps + ((uint)(exponent + 14) << 10));
}
inline uint packHalf2x16(vec2 v) { return to_half(v[0]) | to_half(v[1]) << 16; }
inline float to_float16(float v) { return from_half(to_half(v)); }
inline vec2 unpackHalf2x16(uint v) { return {from_half(v & 0xffff), from_half(v >> 16)}; }

inline vec2 unpackFloat2x16(uint v) { return unpackHalf2x16(v); }

struct Place { uint x, y, z; };
static thread_local uint LID;
static thread_local Place gl_WorkGroupID;
static Place gl_NumWorkGroups;
#define gl_SubgroupID (LID / 32)
#define gl_SubgroupInvocationID (LID % 32)
const uint gl_SubgroupSize = 32, WAVE = 32, KV_BLOCK = 64;
static pthread_barrier_t everybody, subgroups[32];
static void barrier() { pthread_barrier_wait(&everybody); }
static void subgroupBarrier() { pthread_barrier_wait(&subgroups[gl_SubgroupID]); }
template <class T>
T subgroupShuffleXor(T v, uint d) {
    static T exchanged[1024];
    subgroupBarrier();
    exchanged[LID] = v;
    subgroupBarrier();
    return exchanged[LID ^ d];
}
static bool subgroupElect() { return gl_SubgroupInvocationID == 0; }
#define controlBarrier(...) barrier()
static void memoryBarrierBuffer() {}
#define atomicLoad(a, ...) __atomic_load_n(&a, __ATOMIC_RELAXED)
inline uint atomicAdd(uint &a, uint by) { return __atomic_fetch_add(&a, by, __ATOMIC_RELAXED); }
enum Order { gl_CooperativeMatrixLayoutRowMajor, gl_CooperativeMatrixLayoutColumnMajor };
template <class T, uint R, uint C>
struct Matrix {
    static const uint ROWS = R, COLUMNS = C, OWN = R * C / 32;
    T e[R * C];
    bool touched = false;
    Matrix() {}
    explicit Matrix(T v) {
        for (T &one : e) one = v;
    }
    // What an invocation has of 16 x 16 or 16 x 8: rows lane / 4 and 8 further, columns 2 (lane % 4), the next and both 8
    // further, as on NVIDIA's. 32 x 16 bytes on the right: rows 4 (lane % 4) and three on, then 16 further; columns lane / 4
    // and 8 further. 16 x 8 on the right: as on the left, with columns for rows.
    virtual uint place(uint lane, uint i) const {
        if (R == 32) return (lane % 4 * 4 + i / 2 % 4 + i / 8 * 16) * C + lane / 4 + i % 2 * 8;
        return (lane / 4 + i / (OWN / 2) * 8) * C + lane % 4 * 2 + i % 2 + i % (OWN / 2) / 2 * 8;
    }
    T &operator[](uint i) {
        touched = true;
        return e[place(gl_SubgroupInvocationID, i)];
    }
    void gather() {
        if (!touched) return;
        static T shared[32][32][OWN];
        subgroupBarrier();
        for (uint i = 0; i < OWN; i++) shared[gl_SubgroupID][gl_SubgroupInvocationID][i] = (*this)[i];
        subgroupBarrier();
        for (uint i = 0; i < R * C; i++) e[place(i / OWN, i % OWN)] = shared[gl_SubgroupID][i / OWN][i % OWN];
        touched = false;
    }
};
struct HalfLeft : Matrix<float, 16, 16> {
    using Matrix::Matrix;
};
struct HalfRight : Matrix<float, 16, 16> {};
struct NarrowRight : Matrix<float, 16, 8> {
    uint place(uint lane, uint i) const override { return (lane % 4 * 2 + i % 2 + i / 2 * 8) * 8 + lane / 4; }
};
typedef Matrix<float, 16, 16> FloatSum;
typedef Matrix<float, 16, 8> NarrowSum;
struct ByteLeft : Matrix<int, 16, 32> {};
struct ByteRight : Matrix<int, 32, 16> {};
typedef Matrix<int, 16, 16> IntSum;

inline void take(float &e, const uvec4 *from, uint major, uint stride, uint minor) {
    uint word = from[major * stride + minor / 8][minor % 8 / 2];
    e = from_half(minor % 2 ? word >> 16 : word & 0xffff);
}
inline void take(int &e, const uvec4 *from, uint major, uint stride, uint minor) {
    e = (signed char)(from[major * stride + minor / 16][minor % 16 / 4] >> 8 * (minor % 4));
}
inline void coopMatLoad(FloatSum &m, const uvec4 *from, uint at, uint stride, Order) {
    for (uint i = 0; i < 256; i++) memcpy(&m.e[i], &from[at + i / 16 * stride + i % 16 / 4].e[i % 4], 4);
}
inline void coopMatLoad(IntSum &m, const int *from, uint at, uint stride, Order) {
    for (uint i = 0; i < 256; i++) m.e[i] = from[at + i / 16 * stride + i % 16];
}
template <class M>
void coopMatLoad(M &m, const uvec4 *from, uint at, uint stride, Order order) {
    const uint C = M::COLUMNS;
    for (uint i = 0; i < M::ROWS * C; i++) {
        bool rows = order == gl_CooperativeMatrixLayoutRowMajor;
        take(m.e[i], from + at, rows ? i / C : i % C, stride, rows ? i % C : i / C);
    }
}
inline void coopMatStore(const FloatSum &m, uvec4 *to, uint at, uint stride, Order) {
    for (uint i = 0; i < 256 && gl_SubgroupInvocationID == 0; i++)
        memcpy(&to[at + i / 16 * stride + i % 16 / 4][i % 4], &m.e[i], 4);
}
inline void coopMatStore(const IntSum &m, int *to, uint at, uint stride, Order) {
    for (uint i = 0; i < 256 && gl_SubgroupInvocationID == 0; i++) to[at + i / 16 * stride + i % 16] = m.e[i];
}
template <class A, class B, class S>
S coopMatMulAdd(A a, B b, S c) {
    a.gather();
    b.gather();
    c.gather();
    const uint K = A::COLUMNS, N = B::COLUMNS;
    for (uint i = 0; i < 16; i++)
        for (uint k = 0; k < K; k++)
            for (uint j = 0; j < N; j++) c.e[N * i + j] += a.e[K * i + k] * b.e[N * k + j];
    return c;
}

inline FloatSum operator*(const FloatSum &a, const FloatSum &b) {
    FloatSum product;
    for (uint i = 0; i < 256; i++) product.e[i] = a.e[i] * b.e[i];
    return product;
}
inline FloatSum operator+(const FloatSum &a, const FloatSum &b) {
    FloatSum sum;
    for (uint i = 0; i < 256; i++) sum.e[i] = a.e[i] + b.e[i];
    return sum;
}

struct Contents {
    size_t size;
    void *bytes;
};
static std::map<std::string, Contents> known;
// A file's bytes, with room behind them; the same ones for two names of a binding.
static void *contents(const char *name) {
    if (known.count(name)) return known[name].bytes;
    FILE *file = fopen(name, "rb");
    if (!file) abort();
    std::vector<char> bytes(1 << 24);
    size_t size = fread(bytes.data(), 1, bytes.size(), file);
    fclose(file);
    known[name] = {size, memcpy(calloc(1, size + 64), bytes.data(), size)};
    return known[name].bytes;
}
static void store_results() {
    for (auto &[name, made] : known) {
        FILE *file = fopen((name + ".result").c_str(), "wb");
        fwrite(made.bytes, 1, made.size, file);
        fclose(file);
    }
}

void kernel();
static void *invocation(void *id) {
    LID = (uint)(size_t)id;
    for (uint y = 0; y < gl_NumWorkGroups.y; y++)
        for (uint x = 0; x < gl_NumWorkGroups.x; x++) {
            gl_WorkGroupID = {x, y, 0};
            kernel();
            barrier();
        }
    return nullptr;
}
static void run_all(uint group) {
    pthread_barrier_init(&everybody, nullptr, group);
    for (uint i = 0; i < group / 32; i++) pthread_barrier_init(&subgroups[i], nullptr, 32);
    std::vector<pthread_t> threads(group);
    for (uint i = 0; i < group; i++) pthread_create(&threads[i], nullptr, invocation, (void *)(size_t)i);
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
}
