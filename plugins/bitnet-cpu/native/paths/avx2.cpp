#define BITNET_PATH avx2
#define BITNET_PATH_NAME "avx2"
#include "simd/avx2.hpp"
#include "dot/avx2.hpp"
#include "paths/all_kernels.hpp"

namespace bitnet {
const Path avx2_path = avx2::PATH;
}
