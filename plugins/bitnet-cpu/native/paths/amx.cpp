#define BITNET_PATH amx
#define BITNET_PATH_NAME "amx"
#define BITNET_TILES
#include "simd/avx512.hpp"
#include "dot/amx.hpp"
#include "paths/all_kernels.hpp"

namespace bitnet {
const Path amx_path = amx::PATH;
}
