#define BITNET_PATH avxvnni
#define BITNET_PATH_NAME "avx-vnni"
#include "simd/avx2.hpp"
#define BITNET_DPBUSD _mm256_dpbusd_avx_epi32
#include "dot/vnni256.hpp"
#include "paths/all_kernels.hpp"

namespace bitnet {
const Path avxvnni_path = avxvnni::PATH;
}
