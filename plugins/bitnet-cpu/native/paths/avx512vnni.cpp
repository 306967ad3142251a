#define BITNET_PATH avx512vnni
#define BITNET_PATH_NAME "avx512vnni"
#include "simd/avx512.hpp"
#include "dot/avx512.hpp"
#include "paths/all_kernels.hpp"

namespace bitnet {
const Path avx512vnni_path = avx512vnni::PATH;
}
