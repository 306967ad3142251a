#include "paths.hpp"

#include "check.hpp"

#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace bitnet {

namespace {

#if defined(__x86_64__) || defined(_M_X64)
// Leaf 1, ecx bit 29, which Clang 14 has no name for.
bool has_f16c() {
  uint32_t eax = 1, ebx, ecx = 0, edx;
  asm("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  return (ecx >> 29 & 1) != 0;
}

// cpuid and the operating system's support (xgetbv), which the compiler's builtins check too.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }

bool has_avx512vnni() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

// Leaf 7, subleaf 1, eax bit 4, which GCC 12 has no name for.
bool has_avxvnni() {
  uint32_t eax = 7, ebx, ecx = 1, edx;
  asm("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  return has_avx2() && (eax >> 4 & 1) != 0;
}
// Leaf 7, edx bits 24 (tiles) and 25 (int8), and xcr0 bits 17 and 18 of the operating system; Linux must also permit
// the process to use the 8 KB of tile data of each thread.
bool has_amx() {
#if defined(__linux__)
  if (!has_avx512vnni()) return false;
  uint32_t eax = 7, ebx, ecx = 0, edx;
  asm("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  if ((edx >> 24 & 3) != 3) return false;
  uint32_t low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low >> 17 & 3) != 3) return false;
  constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool permitted = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
  return permitted;
#else
  return false;
#endif
}
#elif defined(__aarch64__)
#if defined(__APPLE__)
bool has(const char* feature) {
  int32_t value = 0;
  size_t size = sizeof value;
  return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
}
#endif

bool has_dotprod() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) >> 20 & 1) != 0;  // HWCAP_ASIMDDP
#elif defined(__APPLE__)
  return has("hw.optional.arm.FEAT_DotProd");
#else
  return false;
#endif
}

bool has_i8mm() {
#if defined(__linux__)
  return has_dotprod() && (getauxval(AT_HWCAP2) >> 13 & 1) != 0;  // HWCAP2_I8MM
#elif defined(__APPLE__)
  return has_dotprod() && has("hw.optional.arm.FEAT_I8MM");
#else
  return false;
#endif
}
#endif

}  // namespace

std::vector<const Path*> usable_paths() {
  std::vector<const Path*> paths;
#if defined(__x86_64__) || defined(_M_X64)
  if (has_amx()) paths.push_back(&amx_path);
  if (has_avx512vnni()) paths.push_back(&avx512vnni_path);
  if (has_avxvnni()) paths.push_back(&avxvnni_path);
  if (has_avx2()) paths.push_back(&avx2_path);
#elif defined(__aarch64__)
  if (has_i8mm()) paths.push_back(&neon_i8mm_path);
  if (has_dotprod()) paths.push_back(&neon_dotprod_path);
  paths.push_back(&neon_path);
#endif
  paths.push_back(&portable_path);
  return paths;
}

const Path& path_named(const std::string& name) {
  std::string names;
  for (const Path* path : usable_paths()) {
    if (name == path->name) return *path;
    names += (names.empty() ? "" : ", ") + std::string(path->name);
  }
  throw Unsupported("this CPU cannot run '" + name + "'; it can run " + names);
}

}  // namespace bitnet
