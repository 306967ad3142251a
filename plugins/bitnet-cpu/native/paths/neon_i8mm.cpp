#define BITNET_PATH neon_i8mm
#define BITNET_PATH_NAME "neon-i8mm"
#include "simd/neon.hpp"
#include "dot/neon.hpp"
#include "paths/all_kernels.hpp"

namespace bitnet {
const Path neon_i8mm_path = neon_i8mm::PATH;
}
