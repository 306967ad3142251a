#define BITNET_PATH neon
#define BITNET_PATH_NAME "neon"
#include "simd/neon.hpp"
#include "dot/neon.hpp"
#include "paths/all_kernels.hpp"

namespace bitnet {
const Path neon_path = neon::PATH;
}
