#include "paths.hpp"

#include "check.hpp"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace bitnet {

namespace {

#if defined(__x86_64__) || defined(_M_X64)
// cpuid with the operating system's part (xgetbv), which the compiler's builtins check.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }

bool has_avx512vnni() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

// Leaf 7, subleaf 1, eax bit 4; GCC 12 has no name for it.
bool has_avxvnni() {
  uint32_t eax = 7, ebx, ecx = 1, edx;
  asm("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  return has_avx2() && (eax >> 4 & 1) != 0;
}
#elif defined(__aarch64__)
bool has_dotprod() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) >> 20 & 1) != 0;  // HWCAP_ASIMDDP
#elif defined(__APPLE__)
  int32_t value = 0;
  size_t size = sizeof value;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &value, &size, nullptr, 0) == 0 && value != 0;
#else
  return false;
#endif
}
#endif

}  // namespace

std::vector<const Path*> usable_paths() {
  std::vector<const Path*> paths;
#if defined(__x86_64__) || defined(_M_X64)
  if (has_avx512vnni()) paths.push_back(&avx512vnni_path);
  if (has_avxvnni()) paths.push_back(&avxvnni_path);
  if (has_avx2()) paths.push_back(&avx2_path);
#elif defined(__aarch64__)
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
